"""Coupled drafts: the race. Its statistics: tests/laws."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.aggregation.coupling import coupled_draw, noise, race
from tandem.aggregation.distributions import Distribution


@given(st.lists(st.tuples(st.integers(0, 65535), st.floats(1e-16, 40.0)), min_size=1, max_size=20))
def test_the_race_is_won_by_the_first_clock(pairs: list[tuple[int, float]]) -> None:
    """Against exact arithmetic: the winner's E/q is the smallest up to the rounding of one division."""
    weights, clocks = [w for w, _ in pairs], [e for _, e in pairs]
    if not any(weights):
        weights[0] = 1
    distribution = Distribution(np.arange(len(pairs)), np.array(weights) / sum(weights))
    arrivals = {
        i: Fraction(clock) / Fraction(float(q))
        for i, (clock, q) in enumerate(zip(clocks, distribution.probabilities, strict=True))
        if q > 0
    }
    winner = race(distribution, np.array(clocks))
    assert arrivals[winner] <= min(arrivals.values()) * (1 + Fraction(1, 2**51))


def test_ties_go_to_the_lowest_id() -> None:
    assert race(Distribution(np.array([4, 8]), np.array([0.5, 0.5])), np.ones(2)) == 4


def test_the_noise_of_a_token_does_not_depend_on_the_law() -> None:
    few, many = np.array([3, 70_000]), np.arange(70_001)
    np.testing.assert_array_equal(noise(1, 2, few), noise(1, 2, many)[few])


def test_scaling_a_law_by_its_support_changes_no_winner() -> None:
    """A token of probability zero can be in the support or not."""
    with_zero = Distribution(np.array([1, 2, 3]), np.array([0.5, 0.0, 0.5]))
    without = Distribution(np.array([1, 3]), np.array([0.5, 0.5]))
    for step in range(200):
        assert coupled_draw(with_zero, seed=1, step=step) == coupled_draw(without, seed=1, step=step)


def test_two_thousand_tokens_take_well_below_a_millisecond() -> None:
    distribution = Distribution(np.arange(0, 152_000, 76), np.full(2000, 1 / 2000))
    took_s = []
    for step in range(50):
        start_s = time.perf_counter()
        coupled_draw(distribution, seed=1, step=step)
        took_s.append(time.perf_counter() - start_s)
    assert min(took_s) < 0.3e-3
