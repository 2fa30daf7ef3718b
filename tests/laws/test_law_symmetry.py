"""Swapping the parties swaps nothing but names, bit for bit. Nothing random is judged, no false alarm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.aggregation import rules
from tandem.aggregation import rules as speculative
from tandem.aggregation.coupling import Purpose, uniform
from tandem.aggregation.distributions import Distribution, union
from tandem.aggregation.rules import shares, target_distribution
from tests.distributions import from_dense

VOCAB = 9
distributions = (
    st.lists(st.integers(0, 65_535), min_size=VOCAB, max_size=VOCAB)
    .filter(any)
    .map(lambda w: from_dense(np.array(w, dtype=float)))
)
log_weights = st.floats(-20, 20)


def names_swapped(decision: rules.Verification) -> rules.Verification:
    return rules.Verification(
        target=decision.target,
        device_token=decision.cloud_token,
        cloud_token=decision.device_token,
        acceptance_device=decision.acceptance_cloud,
        acceptance_cloud=decision.acceptance_device,
    )


def check_swap(
    rule: rules.DraftRule, a: Distribution, b: Distribution, log_a: float, log_b: float, step: int
) -> None:
    eta_a, eta_b = shares(log_a, log_b)
    one = rule.verify(a, b, eta_device=eta_a, seed=3, step=step)
    other = rule.verify(b, a, eta_device=eta_b, seed=3, step=step)
    assert other == names_swapped(one)


def of_one_stream(seed: int, purpose: Purpose, step: int) -> float:
    """Algorithm 1 has a stream per party, which would not swap with their names."""
    return uniform(seed, Purpose.DRAFT_DEVICE if purpose is Purpose.DRAFT_CLOUD else purpose, step)


@settings(max_examples=60)
@given(distributions, distributions, log_weights, log_weights, st.integers(0, 1000))
def test_swapping_parties_swaps_names(
    a: Distribution, b: Distribution, log_a: float, log_b: float, step: int
) -> None:
    check_swap(rules.Coupled(), a, b, log_a, log_b, step)
    check_swap(rules.GreedyRule("coupled"), a, b, log_a, log_b, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "uniform", of_one_stream)
        check_swap(rules.Algorithm1(), a, b, log_a, log_b, step)


A, B = (from_dense(np.random.default_rng(seed).dirichlet(np.ones(VOCAB))) for seed in (1, 2))


def check_shares_swap(function: Callable[[float, float], tuple[float, float]]) -> None:
    for log_a in np.linspace(-3.0, 3.0, 101).tolist():
        eta_a, eta_b = function(log_a, 0.1)[0], function(0.1, log_a)[0]
        assert target_distribution(A, B, eta_a) == target_distribution(B, A, eta_b)


def check_decision_law_swaps(
    function: Callable[[int, int, Distribution, Distribution, float], Distribution],
) -> None:
    x, y = int(A.ids[0]), int(B.ids[1])
    assert function(x, y, A, B, 0.25) == function(y, x, B, A, 0.75)


def test_shares_and_decision_law_swap() -> None:
    check_shares_swap(shares)
    check_decision_law_swaps(speculative.target_given_drafts)


def test_mutant_both_shares_rounded_on_their_own() -> None:
    """Shares that do not sum to exactly one differ in the last bits between the two ways round."""
    with pytest.raises(AssertionError):
        check_shares_swap(lambda a, b: (1 / (1 + math.exp(b - a)), 1 / (1 + math.exp(a - b))))


def test_mutant_device_is_preferred() -> None:
    """Choosing the device's result with probability 0.6 commits the right law, but not symmetrically."""

    def lopsided(x: int, y: int, device: Distribution, cloud: Distribution, eta: float) -> Distribution:
        first = speculative.result_distribution(x, device, cloud, 1 - eta)
        second = speculative.result_distribution(y, cloud, device, eta)
        ids = union(first, second)
        return Distribution(ids, 0.6 * first.on(ids) + (1.0 - 0.6) * second.on(ids))

    with pytest.raises(AssertionError):
        check_decision_law_swaps(lopsided)
