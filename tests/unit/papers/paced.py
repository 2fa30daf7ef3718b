"""Rounds of proposals by a clock of their own: how fast is an answer with one policy of lengths or another?

A token of a proposal is accepted with a given rate, as long as those before it were; no tokens are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tandem.plugins.papers.rounds import Rounds
from tandem.scheduler.policies import LengthPolicy

MAX_LENGTH = 16
TOKEN_S = 0.017
"""To draft a token."""
Make = Callable[[int, Callable[[], Rounds]], LengthPolicy]
"""Makes a policy of the longest length and of what measures."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(
    make: Make, rate: float, fixed_s: float, num_tokens: int = 1500, seed: int = 0
) -> tuple[float, list[int]]:
    """Tokens per second, and the lengths."""
    clock, rng, lengths, committed = Clock(), random.Random(seed), list[int](), 0
    policy = make(MAX_LENGTH, lambda: Rounds(clock))
    while committed < num_tokens:
        lengths.append(policy.choose())
        num_accepted = 0
        while num_accepted < lengths[-1] and rng.random() < rate:
            num_accepted += 1
        clock.now_s += fixed_s + lengths[-1] * TOKEN_S
        committed += num_accepted + 1
        policy.observe(lengths[-1], num_accepted, lengths[-1] * TOKEN_S)
    return committed / clock.now_s, lengths
