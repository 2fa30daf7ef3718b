"""FlexSpec's lengths of proposals: the right count of tokens, the rule as it is printed, and what a policy finds."""

from __future__ import annotations

from itertools import product
from statistics import median

import numpy as np
import pytest

from tandem.plugins.papers.flexspec import BestLength, tokens_per_s
from tandem.plugins.papers.rounds import FIRST_LENGTH, Rounds
from tandem.scheduler.policies import load_length_policy, make_length_policy
from tests.unit.papers.paced import MAX_LENGTH, TOKEN_S, Clock, play


def test_speeds_are_those_of_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    for rate, fixed_s, token_s in rng.uniform([0, 0.001, 0.001], [1, 0.5, 0.05], (100, 3)):
        lengths = np.arange(MAX_LENGTH + 1)
        speeds = (1 - rate ** (lengths + 1)) / (1 - rate) / (fixed_s + lengths * token_s)
        assert tokens_per_s(rate, fixed_s, token_s, MAX_LENGTH) == pytest.approx(speeds)


def printed_length(rate: float, fixed_s: float, token_s: float) -> int:
    """FlexSpec Algorithm 2 as printed: 1 + rate * K tokens per round, K from 1."""
    speeds = [(1.0 + rate * length) / (fixed_s + length * token_s) for length in range(1, MAX_LENGTH + 1)]
    return 1 + speeds.index(max(speeds))


def test_the_printed_rule_knows_two_lengths_only() -> None:
    """It takes 1 or the longest, and loses up to a third of the speed."""
    worst = 1.0
    for rate, fixed_s, token_s in product((0.4, 0.6, 0.8, 0.9), [0.06, 0.1, 0.19, 0.34], [0.0105, 0.027]):
        printed = printed_length(rate, fixed_s, token_s)
        assert printed == (MAX_LENGTH if rate * fixed_s > token_s else 1)
        speeds = tokens_per_s(rate, fixed_s, token_s, MAX_LENGTH)
        worst = min(worst, speeds[printed] / max(speeds))
    assert worst < 0.7


def test_the_policy_comes_close_to_the_best_length_in_hindsight() -> None:
    shares = []
    for rate, fixed_s in product((0.4, 0.6, 0.8, 0.9, 0.95), (0.03, 0.1, 0.3)):
        speed, lengths = play(BestLength, rate, fixed_s)
        shares.append(speed / max(tokens_per_s(rate, fixed_s, TOKEN_S, MAX_LENGTH)[1:]))
        assert 1 <= min(lengths) <= max(lengths) <= MAX_LENGTH
    assert min(shares) > 0.9
    assert median(shares) > 0.97


def test_a_longer_round_trip_makes_longer_proposals() -> None:
    near, far = (median(play(BestLength, 0.85, fixed_s)[1]) for fixed_s in (0.02, 0.5))
    assert near < far


def test_the_first_round_waits_for_documents_and_is_not_timed() -> None:
    clock = Clock()
    policy = BestLength(MAX_LENGTH, lambda: Rounds(clock))
    assert policy.choose() == FIRST_LENGTH
    clock.now_s = 100.0
    policy.observe(4, 4, 0.06)
    assert policy.choose() == FIRST_LENGTH
    clock.now_s += 0.1
    policy.observe(4, 4, 0.06)
    assert policy.choose() < MAX_LENGTH, "40 ms besides drafting"
    assert BestLength(2).choose() == 2


def test_settings_load_it() -> None:
    load_length_policy("best", {}, "This process")
    assert isinstance(make_length_policy("best", 3), BestLength)
