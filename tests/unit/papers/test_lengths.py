"""Policies of proposal lengths, loaded as one's own are: the counts, the network's state and file, and their use.

Rounds are played by a clock of their own: a token of a proposal is accepted with a given rate, as long as those before
it were; no tokens are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest

from tandem.errors import ConfigError
from tandem.plugins.papers.lengths import (
    FIRST_LENGTH,
    MAX_LENGTH,
    NUM_CONFIDENCES,
    SHAPES,
    BestLength,
    DoubleDqn,
    LastAccepted,
    Rounds,
    pack,
    tokens_per_s,
)
from tandem.scheduler import LengthPolicy, load_length_policy, make_length_policy

TOKEN_S = 0.017
"""To draft a token."""
Make = Callable[[int, Callable[[], Rounds]], LengthPolicy]
"""Makes a policy of the longest length and of what measures."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(make: Make, rate: float, fixed_s: float) -> tuple[float, list[int]]:
    """Tokens per second of an answer of 1,500, and the lengths."""
    clock, rng, lengths, committed = Clock(), random.Random(0), list[int](), 0
    policy = make(MAX_LENGTH, lambda: Rounds(clock))
    while committed < 1500:
        lengths.append(policy.choose())
        num_accepted = 0
        while num_accepted < lengths[-1] and rng.random() < rate:
            num_accepted += 1
        clock.now_s += fixed_s + lengths[-1] * TOKEN_S
        committed += num_accepted + 1
        policy.observe(lengths[-1], num_accepted, lengths[-1] * TOKEN_S)
    return committed / clock.now_s, lengths


# ---- QS's lengths ---------------------------------------------------------------------------------------------


def rounds_of(fixed_s: float, token_s: float) -> Rounds:
    """Times that are known."""
    rounds = Rounds(Clock())
    rounds.fixed_s, rounds.token_s = fixed_s, token_s
    return rounds


def test_only_accepted_tokens_count(tmp_path: Path) -> None:
    """Weights under which the sum of the confidences decides: above two 9 tokens, else 2."""
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    weights[0][:NUM_CONFIDENCES, 0] = weights[2][0, 0] = 1.0
    weights[4][0, 8], weights[5][1] = 1.0, 2.0
    np.save(tmp_path / "sum.npy", pack(weights))

    def chosen(num_accepted: int) -> int:
        policy = DoubleDqn(MAX_LENGTH, str(tmp_path / "sum.npy"), lambda: rounds_of(0.2, 0.02))
        policy.choose()
        policy.observe(4, num_accepted, 0.04)
        return policy.choose()

    assert [chosen(num_accepted) for num_accepted in (0, 2, 4)] == [2, 2, 9]


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(5, np.float16))
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(ConfigError, match=r"are \d+ numbers, but .*short.npy has shape \(5,\)"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "short.npy"))
    with pytest.raises(ConfigError, match=r"cannot be read from .*text.npy"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "text.npy"))
    with pytest.raises(ConfigError, match=r"cannot be read from .*none.npy"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "none.npy"))


def learned(max_length: int, rounds: Callable[[], Rounds]) -> DoubleDqn:
    return DoubleDqn(max_length, rounds=rounds)


def test_it_has_learned_more_than_the_heuristic_does() -> None:
    """Over links and rates at which lengths from 1 to the longest are best; and longer proposals at higher rates."""
    cells = [(rate, fixed_s) for rate in (0.4, 0.6, 0.8, 0.9) for fixed_s in (0.05, 0.13, 0.33)]
    ratios = [
        play(learned, *cell)[0] / play(lambda longest, _: LastAccepted(longest), *cell)[0] for cell in cells
    ]
    assert mean(ratios) > 1.05
    assert mean(play(learned, 0.9, 0.13)[1]) > mean(play(learned, 0.4, 0.13)[1]) + 3


# ---- FlexSpec's lengths --------------------------------------------------------------------------------------


def test_speeds_are_those_of_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    for rate, fixed_s, token_s in rng.uniform([0, 0.001, 0.001], [1, 0.5, 0.05], (100, 3)):
        lengths = np.arange(MAX_LENGTH + 1)
        speeds = (1 - rate ** (lengths + 1)) / (1 - rate) / (fixed_s + lengths * token_s)
        assert tokens_per_s(rate, fixed_s, token_s, MAX_LENGTH) == pytest.approx(speeds)


def test_the_policy_comes_close_to_the_best_length_in_hindsight() -> None:
    shares = []
    for rate, fixed_s in product((0.4, 0.6, 0.8, 0.9, 0.95), (0.03, 0.1, 0.3)):
        speed, lengths = play(BestLength, rate, fixed_s)
        shares.append(speed / max(tokens_per_s(rate, fixed_s, TOKEN_S, MAX_LENGTH)[1:]))
        assert 1 <= min(lengths) <= max(lengths) <= MAX_LENGTH
    assert min(shares) > 0.9
    assert median(shares) > 0.97


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
