"""top_k and min_p against a slow oracle, exactly; and the mutant that keeps ties by the highest id fails."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tandem.aggregation.distributions import restrict
from tandem.config.sampling import SamplingParams

Floats = NDArray[np.float64]
Restrict = Callable[[Floats, SamplingParams], Floats]


def slow_survivors(probabilities: Floats, sampling: SamplingParams) -> list[int]:
    """Oracle: sort by probability, then id; keep the first top_k; drop those below the threshold."""
    ranked = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    kept = ranked[: sampling.top_k] if sampling.top_k else ranked
    least = sampling.min_p * probabilities.max()
    return sorted(token for token in kept if probabilities[token] >= least)


def check(function: Restrict, probabilities: Floats, sampling: SamplingParams) -> None:
    restricted = function(probabilities, sampling)
    survivors = slow_survivors(probabilities, sampling)
    assert set(np.flatnonzero(restricted).tolist()) == {token for token in survivors if probabilities[token]}
    total = sum(Fraction(float(probabilities[token])) for token in survivors)
    for token in survivors:
        exact = Fraction(float(probabilities[token])) / total
        assert restricted[token] == pytest.approx(float(exact), rel=1e-14)


def draws(seed: int, size: int, levels: int) -> Floats:
    """A distribution with many ties: multiples of one unit, some of them 0."""
    weights = np.random.default_rng(seed).integers(0, levels, size).astype(float)
    weights[seed % size] += 1
    return np.asarray(weights / weights.sum())


@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 45),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_it_equals_the_oracle(seed: int, size: int, levels: int, top_k: int, min_p: float) -> None:
    check(restrict, draws(seed, size, levels), SamplingParams(top_k=top_k, min_p=min_p))


def test_ties_go_to_the_lowest_id() -> None:
    probabilities = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    assert np.flatnonzero(restrict(probabilities, SamplingParams(top_k=2))).tolist() == [1, 2]
    assert np.flatnonzero(restrict(probabilities, SamplingParams(top_k=3))).tolist() == [1, 2, 3]
    assert restrict(probabilities, SamplingParams(top_k=1)).tolist() == [0, 0, 1, 0, 0]


def test_min_p_counts_from_the_largest() -> None:
    probabilities = np.array([0.1, 0.2, 0.4, 0.3])
    assert np.flatnonzero(restrict(probabilities, SamplingParams(min_p=0.5))).tolist() == [1, 2, 3]
    assert np.flatnonzero(restrict(probabilities, SamplingParams(min_p=1.0))).tolist() == [2]
    assert np.flatnonzero(restrict(probabilities, SamplingParams(min_p=0.5, top_k=2))).tolist() == [2, 3]


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(top_k=7), SamplingParams(top_k=5, min_p=0.1)]
)
def test_what_drops_nothing_changes_no_bit(sampling: SamplingParams) -> None:
    probabilities = np.array([0.1, 0.2, 0.30000000000000004, 0.2, 0.2])
    assert restrict(probabilities, sampling) is probabilities


def test_the_mutant_that_keeps_the_highest_ids_fails() -> None:
    def mutant(probabilities: Floats, sampling: SamplingParams) -> Floats:
        return restrict(probabilities[::-1], sampling)[::-1]

    tied = np.array([0.25, 0.25, 0.25, 0.25])
    check(restrict, tied, SamplingParams(top_k=3))
    with pytest.raises(AssertionError):
        check(mutant, tied, SamplingParams(top_k=3))
