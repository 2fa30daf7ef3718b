"""The best length of proposals against brute force and the best length in hindsight."""

from __future__ import annotations

from itertools import product
from statistics import median

import numpy as np
import pytest

from tandem.scheduler.lengths import (
    MAX_LENGTH,
    BestLength,
    RoundCosts,
    best_length,
    expected_tokens,
    throughputs,
)
from tests.unit.papers.rounds import DISTRIBUTION_BITS, ID_BITS, costs_of, play_rounds, tokens_per_s

ALL_RATES = [0.4, 0.6, 0.8, 0.9]
GRID = list(
    product([0.0, 0.02, 0.05, 0.1, 0.3], [3e4, 1e5, 1e6, 1e7], ALL_RATES, [ID_BITS, DISTRIBUTION_BITS])
)
"""Round trip in seconds, rate of the link in bits per second, acceptance, bits of a proposed token."""


def flat(rate: float) -> list[float]:
    """The same rate at every position."""
    return [rate] * MAX_LENGTH


def hindsight(rate: float, costs: RoundCosts) -> float:
    """Tokens per second with the best fixed length."""
    return max(throughputs(flat(rate), costs))


def test_a_round_is_worth_the_tail_sums_of_its_acceptance() -> None:
    for rate in (0.0, 0.3, 0.9):
        sums = [(1 - rate ** (length + 1)) / (1 - rate) for length in range(MAX_LENGTH + 1)]
        assert expected_tokens(flat(rate)) == pytest.approx(sums)
    assert expected_tokens(flat(1.0))[5] == 6
    assert expected_tokens([0.5, 0.2, 1.0]) == pytest.approx([1, 1.5, 1.6, 1.7])


def test_the_best_length_equals_brute_force() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10_000):
        rate, fixed_s, token_s, alone_s = rng.uniform([0, 0.001, 0.001, 0.001], [1, 0.5, 0.05, 0.5])
        costs = RoundCosts(fixed_s=fixed_s, token_s=token_s, alone_s=alone_s)
        lengths = np.arange(1, MAX_LENGTH + 1)
        speeds = [1 / alone_s, *((1 - rate ** (lengths + 1)) / (1 - rate) / (fixed_s + lengths * token_s))]
        chosen = best_length(flat(rate), costs)
        assert speeds[chosen] >= max(speeds) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("token_s", "fixed_s", "lengths"),
    [
        (0.0105, 0.06, [1, 2, 4, 7]),
        (0.027, 0.06, [1, 1, 2, 3]),
        (0.0105, 0.1, [2, 3, 6, 9]),
        (0.027, 0.1, [1, 2, 3, 5]),
        (0.0105, 0.19, [2, 4, 8, 13]),
        (0.027, 0.19, [1, 2, 5, 8]),
        (0.0105, 0.34, [3, 5, 9, 16]),
        (0.027, 0.34, [2, 3, 6, 11]),
    ],
)
def test_known_best_lengths(token_s: float, fixed_s: float, lengths: list[int]) -> None:
    costs = RoundCosts(fixed_s=fixed_s, token_s=token_s, alone_s=10.0)
    assert [best_length(flat(rate), costs) for rate in ALL_RATES] == lengths


PIPELINED = RoundCosts(fixed_s=0.23, token_s=0.018, alone_s=0.23, draft_s=0.015, pass_s=0.03)


def chain_speed(rate: float, costs: RoundCosts, length: int, seed: int) -> float:
    """Tokens per second of a drafter that goes on, proposal by proposal."""
    rng, num_tokens, lasted_s, is_following = np.random.default_rng(seed), 0, 0.0, False
    for _ in range(20_000):
        lasted_s += costs.following_s(length) if is_following else costs.round_s(length)
        num_accepted = min(int(rng.geometric(1.0 - rate)) - 1, length)
        is_following = num_accepted == length
        num_tokens += num_accepted + (not is_following)
    return num_tokens / lasted_s


@pytest.mark.parametrize("rate", ALL_RATES)
def test_a_drafter_that_goes_on_pays_a_whole_round_for_a_rejection_only(rate: float) -> None:
    speeds = throughputs(flat(rate), PIPELINED)
    for length in (1, 3, 8):
        assert chain_speed(rate, PIPELINED, length, length) == pytest.approx(speeds[length], rel=0.03)


@pytest.mark.parametrize("streamed", [True, False])
def test_it_comes_close_to_the_best_length_in_hindsight(streamed: bool) -> None:
    """The estimates are made on the way."""
    shares = {}
    for rtt_s, bits_per_s, rate, bits in GRID[streamed::5]:
        costs = costs_of(rtt_s, bits_per_s, bits, streamed=streamed)
        speeds = [
            tokens_per_s(play_rounds(BestLength(), lambda _: rate, lambda _: costs, 2000, seed))  # noqa: B023
            for seed in range(3)
        ]
        shares[rtt_s, bits_per_s, rate, bits] = sum(speeds) / 3 / hindsight(rate, costs)
    assert min(shares.values()) >= 0.97, min(shares, key=lambda key: shares[key])


def rounds_until_good(rate: tuple[float, float], rtt_s: tuple[float, float], seed: int) -> int:
    """Rounds after a change at round 100 until the chosen length has 90 % of the best one's throughput."""
    before, after = (costs_of(each, 1e6, streamed=False) for each in rtt_s)
    rounds = play_rounds(
        BestLength(),
        lambda number: rate[number >= 100],
        lambda number: after if number >= 100 else before,
        1500,
        seed,
    )
    least = 0.9 * hindsight(rate[1], after)
    later = enumerate(rounds[100:])
    return next(number for number, each in later if throughputs(flat(rate[1]), after)[each.length] >= least)


def test_it_follows_a_change() -> None:
    assert median(rounds_until_good((0.9, 0.4), (0.1, 0.1), seed) for seed in range(21)) <= 15
    assert max(rounds_until_good((0.8, 0.8), (0.02, 0.3), seed) for seed in range(21)) <= 15


def test_it_stops_proposing_where_that_does_not_pay_and_tries_again() -> None:
    costs = costs_of(0.3, 1e6)
    rounds = play_rounds(BestLength(), lambda _: 0.3, lambda _: costs, 4000, 5)
    assert all(each.length == 0 for each in rounds[10:20])
    assert tokens_per_s(rounds) >= 0.97 / costs.alone_s
    assert any(each.length for each in rounds[20:])
