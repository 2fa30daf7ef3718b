"""Statistical yardsticks of the law tests.

Every test of a random outcome uses fixed seeds, so it either always passes or always fails; the false-alarm
probability stated in a docstring is that of a fresh choice of seeds with a correct implementation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from scipy import stats

# A loaded machine must fail no property, and a run must repeat the last one.
settings.register_profile("tandem", deadline=None, derandomize=True)
settings.load_profile("tandem")

FALSE_ALARM = 1e-9


def _chi_square(counts: np.ndarray, distribution: np.ndarray) -> None:
    """Fails if counts are too far from n * law: chi-square at 1e-9, cells expected below 10 pooled."""
    expected = distribution.ravel() * counts.sum()
    observed = counts.ravel()
    assert observed[expected == 0].sum() == 0, "a token outside the law's support"
    small = expected < 10
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    cells = expected > 0
    statistic = float(((observed[cells] - expected[cells]) ** 2 / expected[cells]).sum())
    p_value = float(stats.chi2.sf(statistic, int(cells.sum()) - 1))
    assert p_value > FALSE_ALARM, f"chi-square {statistic:.1f} in {int(cells.sum())} cells, p = {p_value:.2g}"


def _binomial(successes: int, n: int, rate: float) -> None:
    """Fails if the number of successes lies in either tail of Binomial(n, rate) of mass 1e-9 / 2."""
    low, high = stats.binom.cdf(successes, n, rate), stats.binom.sf(successes - 1, n, rate)
    assert min(low, high) > FALSE_ALARM / 2, f"{successes} of {n}, expected rate {rate:.4f}"


@pytest.fixture(scope="session")
def chi_square() -> Callable[[np.ndarray, np.ndarray], None]:
    """Checks counts [cells] against a law [cells]."""
    return _chi_square


@pytest.fixture(scope="session")
def binomial() -> Callable[[int, int, float], None]:
    """Checks a number of successes against a rate."""
    return _binomial
