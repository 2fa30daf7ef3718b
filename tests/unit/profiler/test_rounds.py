"""Estimates of rounds find the costs that made the measurements, also where lengths follow the link."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from tandem.messages import Round
from tandem.profiler.rounds import RoundEstimator

PASS_S, VERIFY_S, DRAFT_S = 0.025, 0.002, 0.015


def measured(
    length: int, link_s: float = 0.1, *, bytes_per_s: float = inf, token_bytes: int = 2, **changes: Any
) -> Round:
    """A round as the times above have it."""
    sent_s = length * token_bytes / bytes_per_s
    values: dict[str, Any] = {
        "length": length,
        "num_accepted": length,
        "draft_us": round(1e6 * length * DRAFT_S),
        "num_bytes": length * token_bytes,
        "waited_s": link_s + sent_s + PASS_S + length * VERIFY_S,
        "rtt_s": link_s,
        "bytes_per_s": bytes_per_s,
    }
    return Round(**(values | changes))


def played(*rounds: Round, **options: Any) -> RoundEstimator:
    estimator = RoundEstimator(16, **options)
    for each in rounds:
        estimator.add(each)
    return estimator


def test_costs_are_found_from_rounds_of_different_lengths() -> None:
    rng = random.Random(1)
    costs = played(*(measured(rng.randint(0, 16)) for _ in range(200))).costs
    assert costs.fixed_s == pytest.approx(0.1 + PASS_S, rel=0.02)
    assert costs.token_s == pytest.approx(DRAFT_S + VERIFY_S, rel=0.02)
    assert costs.alone_s == costs.fixed_s


@pytest.mark.parametrize("bytes_per_s", [1250.0, 12_500.0])
def test_bytes_cost_what_the_measured_rate_says(bytes_per_s: float) -> None:
    """A distribution of 500 bytes per token; the round trip's sample holds the frame's bytes, or does not."""
    for is_held in (False, True):
        rounds = [
            measured(
                length,
                bytes_per_s=bytes_per_s,
                token_bytes=500,
                rtt_s=0.1 + is_held * length * 500 / bytes_per_s,
            )
            for length in (1, 2, 3, 4) * 30
        ]
        costs = played(*rounds).costs
        assert costs.token_s == pytest.approx(DRAFT_S + 500 / bytes_per_s, rel=0.1)
        assert costs.fixed_s == pytest.approx(0.1 + PASS_S, rel=0.1)


def rounds_that_follow_the_link() -> list[Round]:
    """Long proposals where the round trip is long, as the best length has them."""
    return [measured(3 if rtt_s < 0.1 else 9, rtt_s) for rtt_s in ([0.05] * 5 + [0.3] * 5) * 20]


def test_lengths_that_follow_the_link_do_not_look_like_its_cause() -> None:
    costs = played(*rounds_that_follow_the_link()).costs
    assert costs.token_s == pytest.approx(DRAFT_S + VERIFY_S, rel=0.05)


def test_a_new_round_trip_counts_at_once() -> None:
    costs = played(*[measured(4, 0.05)] * 50, *[measured(4, 0.3)] * 4).costs
    assert costs.fixed_s > 0.9 * 0.3


def test_the_next_query_begins_where_this_one_ends() -> None:
    rejected = [measured(4, num_accepted=0) for _ in range(50)]
    estimator = played(*rejected)
    same, other = estimator.carry_over(acceptance=True), estimator.carry_over(acceptance=False)
    assert same.costs == other.costs == estimator.costs
    assert same.acceptance.rate < 0.1 < 0.5 < other.acceptance.rate
    same.add(measured(4, 0.9))
    assert estimator.costs == other.costs != same.costs
