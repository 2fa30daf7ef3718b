"""Distributions: what they accept, look up and compare, with a rest too; the largest of them, and what sampling
options leave."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tandem.aggregation.coupling import Purpose, coupled_draw, noise, uniform
from tandem.aggregation.distributions import Distribution, largest, nucleus, restrict
from tandem.aggregation.rules import Coupled, draw
from tandem.config.schema import SamplingParams
from tandem.modes import reference_shaping

# ---- distributions: what they accept, look up and compare ----------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "probabilities", "rest", "problem"),
    [
        ([], [], (), "distribution"),
        ([1, 2], [1.0], (), "distribution"),
        ([2, 1], [0.5, 0.5], (), "distribution"),
        ([1, 1], [0.5, 0.5], (), "distribution"),
        ([-1, 1], [0.5, 0.5], (), "distribution"),
        ([1, 2], [1.5, -0.5], (), "distribution"),
        ([1, 2], [0.5, 0.4], (), "distribution"),
        ([1, 2], [0.5, float("nan")], (), "distribution"),
        ([0, 2], [0.25, 0.25], (0.5, 0), r"up to 2 and a rest of 0\.5 does not fit a vocabulary of 0 tokens"),
        ([0, 2], [0.25, 0.25], (0.5, 2), "does not fit a vocabulary of 2 tokens"),
        ([0, 2], [0.25, 0.25], (0.4, 9), r"of sum 1, got sum 0\.9"),
        ([0, 2], [0.25, 0.25], (-0.5, 9), "probabilities >= 0"),
        ([0, 2], [0.25, 0.25], (float("nan"), 9), "of sum 1"),
    ],
)
def test_what_is_no_distribution_is_refused(
    ids: list[int], probabilities: list[float], rest: tuple[Any, ...], problem: str
) -> None:
    """rest: the mass of the other tokens, and the vocabulary."""
    with pytest.raises(ValueError, match=problem):
        Distribution(np.array(ids, dtype=np.int64), np.array(probabilities), *rest)


# ---- the largest of many numbers, against sorting all of them ------------------------------------------------


def slow_largest(values: NDArray[np.float64], limit: int) -> list[int]:
    """By value, of equals by place."""
    return sorted(sorted(range(values.size), key=lambda place: (-values[place], place))[:limit])


@pytest.mark.parametrize("num_levels", [1, 3, 40, 10**9])
def test_the_largest_are_those_that_sorting_finds(num_levels: int) -> None:
    rng = np.random.default_rng(num_levels)
    for size in (1, 2, 17, 256, 257, 300, 1025, 3000):
        values = rng.integers(num_levels, size=size) / num_levels
        for limit in {1, min(5, size), min(70, size), size // 2 + 1, size}:
            assert largest(values, limit).tolist() == slow_largest(values, limit)


# ---- top_k and min_p against a slow oracle, exactly; and the mutant that keeps ties by the highest i ---------

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


@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(2, 9), st.integers(1, 1024))
def test_the_nucleus_is_that_of_the_reference_page(seed: int, size: int, levels: int, share: int) -> None:
    """Multiples of a power of two, whose sums are exact."""
    weights = np.random.default_rng(seed).integers(0, levels, size) / 1024.0
    weights[seed % size] += 1 / 1024
    assert nucleus(weights, share / 1024).tolist() == reference_shaping.nucleus(
        weights.tolist(), share / 1024
    )


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


VOCAB = 6
ETA = 0.3


def distribution(rng: np.random.Generator, rest: float) -> Distribution:
    """One to five ids of six with the mass that `rest` leaves."""
    num_ids = int(rng.integers(1, VOCAB))
    ids = np.sort(rng.choice(VOCAB, num_ids, replace=False))
    return Distribution(ids, (1.0 - rest) * rng.dirichlet(np.ones(num_ids)), rest, VOCAB)


def pairs(count: int = 40) -> list[tuple[Distribution, Distribution]]:
    """Pairs in which the first, the second or both have a rest."""
    rng = np.random.default_rng(5)
    rests = [(0.3, 0.0), (0.0, 0.4), (0.2, 0.7)]
    return [(distribution(rng, one), distribution(rng, other)) for one, other in rests for _ in range(count)]


def test_its_probabilities_are_those_of_the_dense_form() -> None:
    q = Distribution(np.array([1, 4]), np.array([0.5, 0.2]), rest=0.3, vocab_size=5)
    dense = [0.1, 0.5, 0.1, 0.1, 0.2]
    assert q.dense(5) == pytest.approx(dense, abs=1e-15)
    assert q.dense(7) == pytest.approx([*dense, 0, 0], abs=1e-15), "padding is no token of the vocabulary"
    assert [q.probability(token) for token in range(5)] == pytest.approx(dense, abs=1e-15)
    assert q.on(np.array([0, 1, 4])) == pytest.approx([0.1, 0.5, 0.2], abs=1e-15)
    assert q.rest_beyond(3) == pytest.approx(0.2, abs=1e-15)
    assert q.spread().rest == 0.0
    assert q.spread().probabilities.tolist() == q.dense(5).tolist()


@pytest.mark.parametrize(
    ("ids", "probabilities", "rest", "expected"),
    [
        ([1, 3], [0.3, 0.2], 0.5, 1),  # tokens 0 and 2 have 0.25 each
        ([1, 3], [0.1, 0.1], 0.8, 0),  # the rest is likelier
        ([0, 1], [0.25, 0.25], 0.5, 0),  # all equal
        ([1, 2], [0.25, 0.25], 0.5, 0),  # all equal, and the lowest id belongs to the rest
    ],
)
def test_argmax_is_the_lowest_of_the_likeliest(
    ids: list[int], probabilities: list[float], rest: float, expected: int
) -> None:
    q = Distribution(np.array(ids), np.array(probabilities), rest, 4)
    assert q.argmax() == int(np.argmax(q.dense(4))) == expected


def test_draws_run_over_the_whole_vocabulary() -> None:
    """The race and the quantile of a distribution with a rest are those of its dense array, for every step."""
    for step, (own, other) in enumerate(pairs(200)):
        q, r = own.dense(VOCAB), other.dense(VOCAB)
        clocks = noise(7, step, np.arange(VOCAB))
        assert coupled_draw(own, seed=7, step=step) == int(np.argmax(q / clocks))
        u = uniform(7, Purpose.DECISION, step)
        assert draw(own, u) == int(np.searchsorted(np.cumsum(q), u * np.cumsum(q)[-1], side="right"))
        decision = Coupled().verify(own, other, eta_device=ETA, seed=7, step=step)
        assert decision.target == int(np.argmax((ETA * q + (1 - ETA) * r) / clocks))
        assert (decision.device_token, decision.cloud_token) == (
            coupled_draw(own, seed=7, step=step),
            coupled_draw(other, seed=7, step=step),
        )
