"""Rounds of proposals against a model of link and models: how fast is an answer with one policy of lengths or another?

Stop-and-wait: a round ends when its verdict is there. A token of a proposal is accepted with a given rate, as long as
those before it were; no tokens are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tandem.profiler.rounds import ProposalAcceptance
from tandem.scheduler.lengths import MAX_LENGTH, LengthPolicy, RoundCosts

DRAFT_S, PASS_S, VERIFY_S = 0.015, 0.025, 0.002
"""To draft a token, a pass of the decider, and its share for one proposed token more."""
SPREAD = 0.15
"""Standard deviation of a drafter's confidence in a token around the probability that the token is accepted."""
FRAME_BITS, ID_BITS, DISTRIBUTION_BITS = 240, 17, 2400
"""Of a frame without its content, of a proposed id, and of an id with a quantised distribution of 300 bytes."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run."""

    length: int
    num_accepted: int
    rate: float  # as the policy knew it
    lasted_s: float


def costs_of(rtt_s: float, bits_per_s: float, bits: int = ID_BITS, *, streamed: bool = True) -> RoundCosts:
    """Of a link. streamed: without proposals the decider streams its tokens; else each one is asked for."""
    return RoundCosts(
        fixed_s=rtt_s + PASS_S + FRAME_BITS / bits_per_s,
        token_s=DRAFT_S + VERIFY_S + bits / bits_per_s,
        alone_s=PASS_S + VERIFY_S + (0.0 if streamed else rtt_s),
    )


def play_rounds(
    policy: LengthPolicy,
    rate: Callable[[int], float],
    costs: Callable[[int], RoundCosts],
    num_tokens: int,
    seed: int,
) -> list[Round]:
    """The rounds of an answer. rate, costs: in the round of that number."""
    rng, acceptance, rounds = random.Random(seed), ProposalAcceptance(MAX_LENGTH), list[Round]()
    sure = random.Random(
        f"confidences {seed}"
    )  # apart, so that a policy that ignores them has the same rounds
    committed = 0
    while committed < num_tokens:
        number, known = len(rounds), acceptance.rate
        now = costs(number)
        length = policy.choose(acceptance.rates, now, acceptance.error)
        num_accepted = 0
        while num_accepted < length and rng.random() < rate(number):
            num_accepted += 1
        acceptance.observe(length, num_accepted)
        policy.observe(length, num_accepted, [draw_confidence(rate(number), sure) for _ in range(length)])
        committed += num_accepted + 1
        rounds.append(Round(length, num_accepted, known, now.round_s(length)))
    return rounds


def draw_confidence(rate: float, rng: random.Random) -> float:
    """The drafter's probability of a token that is accepted with this rate: right on average, with an error."""
    return min(0.99, max(0.01, rng.gauss(rate, SPREAD)))


def tokens_per_s(rounds: list[Round]) -> float:
    """Of a whole run."""
    return sum(each.num_accepted + 1 for each in rounds) / sum(each.lasted_s for each in rounds)
