"""The estimate of acceptance is right for every length of proposals, and follows a change."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean

import pytest

from tandem.profiler.rounds import MIN_JUDGED, ProposalAcceptance

NUM_ROUNDS, NUM_RUNS = 200, 60
LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "1": lambda _: 1,
    "8": lambda _: 8,
    "any": lambda rng: rng.randint(1, 16),
}


def accepted(rng: random.Random, rate: float, length: int) -> int:
    """Tokens of one proposal before the first rejected one."""
    return next((place for place in range(length) if rng.random() >= rate), length)


def estimates(rate: float, draw_length: Callable[[random.Random], int]) -> tuple[float, float]:
    """Mean over many runs of the estimate, and of the average of accepted over proposed."""
    known, ratios = [], []
    for seed in range(NUM_RUNS):
        rng, acceptance, ratio = random.Random(seed), ProposalAcceptance(16), []
        for _ in range(NUM_ROUNDS):
            length = draw_length(rng)
            num_accepted = accepted(rng, rate, length)
            acceptance.observe(length, num_accepted)
            ratio.append(num_accepted / length)
        known.append(acceptance.rate)
        ratios.append(mean(ratio))
    return mean(known), mean(ratios)


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_length_does_not_bias_the_estimate(rate: float, lengths: str) -> None:
    known, _ = estimates(rate, LENGTHS[lengths])
    assert known == pytest.approx(rate, abs=0.03)


def test_the_rate_follows_a_change() -> None:
    follows = 0
    for seed in range(40):
        rng, acceptance = random.Random(seed), ProposalAcceptance(16)
        for _ in range(100):
            acceptance.observe(8, accepted(rng, 0.9, 8))
        for _ in range(15):
            acceptance.observe(8, accepted(rng, 0.4, 8))
        follows += acceptance.rate < 0.65
    assert follows >= 36


def test_positions_have_rates_of_their_own_once_they_are_known() -> None:
    acceptance = ProposalAcceptance(3)
    assert acceptance.rates == (acceptance.rate,) * 3
    for number in range(int(4 * MIN_JUDGED)):
        acceptance.observe(3, (3, 1, 1, 3)[number % 4])
    first, second, third = acceptance.rates
    assert first == 1.0
    assert second == pytest.approx(0.5, abs=0.05)
    assert third == 1.0
    assert first > acceptance.rate > second
