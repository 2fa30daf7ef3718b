"""Coupled drafts: exact marginals of drafts and target through codec and rule.

With two tokens each distribution follows by quadrature over the noise and a search for the point where the real code
changes its mind; no sampling, no false alarm, agreement to 1e-11.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tandem.aggregation import coupling as coupled
from tandem.aggregation import rules
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import coupled_acceptance, target_distribution
from tandem.codecs.top_p import TopP
from tests.distributions import from_dense

NODES, NODE_WEIGHTS = np.polynomial.laguerre.laggauss(40)
LOW, HIGH = np.array([0.25, 0.0, 0.75]), np.array([0.6, 0.0, 0.4])  # two tokens, 0 and 2
Wins = Callable[[float, float], bool]


def probability(wins: Wins) -> float:
    """P(wins(E_0, E_2)) for independent exponential clocks, if wins holds just below a threshold of E_0."""
    total = 0.0
    for x, weight in zip(NODES.tolist(), NODE_WEIGHTS.tolist(), strict=True):
        low, high = 0.0, 64.0 * (x + 1.0)
        for _ in range(64):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if wins(middle, x) else (low, middle)
        total += weight * -np.expm1(-low)
    return float(total)


def check_marginals() -> None:
    codec = TopP(1.0)
    device, cloud = codec.decode(codec.encode(LOW)), codec.decode(codec.encode(HIGH))
    rule, eta = rules.Coupled(), 0.3
    clocks = np.empty(2)
    with pytest.MonkeyPatch.context() as patch:
        for module in (rules, coupled):  # whatever is imported there reads the scripted clocks
            patch.setattr(module, "noise", lambda seed, step, ids: clocks)

        def wins(read: Callable[[rules.Verification], int]) -> Wins:
            def answer(first: float, second: float) -> bool:
                clocks[:] = first, second
                return read(rule.verify(device, cloud, eta_device=eta, seed=0, step=0)) == 0

            return answer

        assert probability(wins(lambda d: d.device_token)) == pytest.approx(device.probability(0), abs=1e-11)
        assert probability(wins(lambda d: d.cloud_token)) == pytest.approx(cloud.probability(0), abs=1e-11)
        mixture = eta * device.probability(0) + (1 - eta) * cloud.probability(0)
        assert probability(wins(lambda d: d.target)) == pytest.approx(mixture, abs=1e-11)


def test_coupled_marginals_are_the_distributions() -> None:
    check_marginals()


RACE_MUTANTS: dict[str, Callable[[Distribution, np.ndarray], int]] = {
    "adds the noise to q instead of log q": lambda distribution, clocks: int(
        distribution.ids[np.argmax(distribution.probabilities - np.log(clocks))]
    ),
    "races uniform numbers": lambda distribution, clocks: int(
        distribution.ids[np.argmax(distribution.probabilities / -np.expm1(-clocks))]
    ),
    "multiplies": lambda distribution, clocks: int(
        distribution.ids[np.argmax(distribution.probabilities * clocks)]
    ),
}


@pytest.mark.parametrize("mutant", RACE_MUTANTS.values(), ids=RACE_MUTANTS.keys())
def test_coupled_marginals_mutants(
    mutant: Callable[[Distribution, np.ndarray], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "race", mutant)
    with pytest.raises(AssertionError):
        check_marginals()


def test_coupled_acceptance_is_exact_for_two_tokens() -> None:
    """Draft and target agree where both or neither pick token 0; the smaller of two thresholds decides."""
    device, cloud = from_dense(LOW), from_dense(HIGH)
    target = target_distribution(device, cloud, 0.3)

    def picks(distribution: Distribution, first: float, second: float) -> bool:
        return coupled.race(distribution, np.array([first, second])) == 0

    both = probability(lambda a, b: picks(device, a, b) and picks(target, a, b))
    either = probability(lambda a, b: picks(device, a, b) or picks(target, a, b))
    assert coupled_acceptance(device, target) == pytest.approx(both + 1 - either, abs=1e-11)
