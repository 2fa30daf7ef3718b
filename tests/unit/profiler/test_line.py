"""The decode line: exact fits and updates, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan
from random import Random

import numpy as np
import pytest

from tandem.errors import TandemError
from tandem.profiler.estimates import DecodeLine

LINE = DecodeLine(k_a=2.0, k_b=1000.0, k_c=0.01, start=30.0)


def test_fit_is_least_squares_and_k_a_k_b_are_its_moments() -> None:
    rng = Random(1)
    lengths = [rng.randrange(50, 2000) for _ in range(300)]
    seconds = [0.01 + 1e-5 * t + rng.uniform(0, 0.005) for t in lengths]
    line = DecodeLine.fit(lengths, seconds)
    slope, intercept = np.polyfit(lengths, seconds, 1)
    assert (line.start, DecodeLine.fit(lengths, seconds, start=99).start) == (min(lengths), 99.0)
    assert line.predict(1000) == pytest.approx(1000 * slope + intercept, rel=1e-9)
    assert line.slope == pytest.approx(slope, rel=1e-9)
    assert line.k_c == pytest.approx(intercept, rel=1e-9)
    products = [(c - line.k_c) * t for t, c in zip(lengths, seconds, strict=True)]
    assert line.k_a == pytest.approx(np.mean(products), rel=1e-9)
    assert line.k_b == pytest.approx(np.mean(np.square(lengths)), rel=1e-9)


@pytest.mark.parametrize("zeta", [0.05, 0.2, 1.0])
def test_the_slope_converges_to_a_new_one(zeta: float) -> None:
    line, errors = LINE, []
    for step in range(600):
        t = 30 + step
        line = line.update(t, 0.005 * t + LINE.k_c, zeta)
        errors.append(abs(line.slope - 0.005))
    assert all(later <= max(earlier, 1e-12) for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-12


@pytest.mark.parametrize(("t", "seconds"), [(40, nan), (40, inf), (40, -0.1), (nan, 0.1), (0, 0.1)])
def test_what_was_not_measured_changes_nothing(t: float, seconds: float) -> None:
    assert LINE.update(t, seconds) == LINE


@pytest.mark.parametrize(
    ("lengths", "seconds", "sentence"),
    [
        ([], [], "two different context lengths, got 0"),
        ([5, 5], [0.1, 0.2], "two different context lengths, got 1"),
        ([5, 6], [0.1], "got 2 lengths and 1 times"),
        ([5, 6], [0.1, nan], "at least 0, got nan"),
        ([5, 6], [0.1, -0.2], "at least 0, got -0.2"),
        ([5, nan], [0.1, 0.2], "at least 0, got nan"),
    ],
)
def test_points_that_make_no_line(lengths: list[float], seconds: list[float], sentence: str) -> None:
    with pytest.raises(TandemError, match=sentence):
        DecodeLine.fit(lengths, seconds)
