"""How many tokens a drafter without a vote proposes at a time: always as many, the best length, or by a policy.

A round proposes K tokens and commits those that are accepted and one more, the correction or the bonus. It lasts
fixed_s + K * token_s (FlexSpec Eq. 7 to 10). NOT in the paper: the tokens that a round is worth. With acceptance rates
a_1, a_2, ... by position they are 1 + a_1 + a_1 a_2 + ..., for one rate a (1 - a^(K + 1)) / (1 - a); the count
of FlexSpec Algorithm 2, 1 + a K, makes either 1 or the longest length best in every situation
(`tandem.plugins.papers.flexspec.printed_length`).
Lengths may be 0: the decider then continues alone.

NOT in the paper: a drafter that keeps drafting while its proposals are under way. A whole round follows only a
rejection; behind a proposal that is accepted as a whole, the next one is decided as soon as the slower of both, drafter
and decider, is through with it. So proposals need not be long to hide a round trip, only long enough to share the fixed
part of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan, nan
from operator import mul
from typing import Protocol

from tandem.config.extensions import Parameters
from tandem.scheduler.policies import Loader

MAX_LENGTH = 16
"""Tokens of a proposal, at most."""
MIN_GAIN = 0.01
"""A change of length must promise this share of throughput, or estimates that flicker would change it every round."""
PROBING_SHARE = 0.02
"""Share of the time without proposals that may be spent on trying whether they pay again."""
PROBE_LENGTH = 2
"""Tokens of such a trial."""


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """The durations of a round, in seconds, as measured on the link and in the models."""

    fixed_s: float  # round trip, the decider's pass, a frame's header, whatever does not depend on the length
    token_s: float  # to draft, send and verify one proposed token
    alone_s: float  # a token that the decider commits alone, without any proposal
    draft_s: float = nan  # of token_s, to draft it; nan: the drafter waits for verdicts
    pass_s: float = 0.0  # of fixed_s, the decider's pass

    def round_s(self, length: int) -> float:
        """Seconds of a round with so many proposed tokens; 0: without a proposal."""
        return self.fixed_s + length * self.token_s if length else self.alone_s

    def following_s(self, length: int) -> float:
        """Seconds from one verdict to the next, where proposals follow each other and all their tokens are accepted."""
        return max(length * self.draft_s, self.pass_s + length * (self.token_s - self.draft_s))


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Tokens that a round commits, by the length of its proposal, [len(rates) + 1]: from 1 to length + 1.

    rates: by position in a proposal, as `ProposalAcceptance.rates`.
    """
    return list(accumulate(accumulate(rates, mul), initial=1.0))


def throughputs(rates: Sequence[float], costs: RoundCosts) -> list[float]:
    """Committed tokens per second, by the length of proposals, [len(rates) + 1]."""
    tokens = expected_tokens(rates)
    if isnan(costs.draft_s):
        return [count / costs.round_s(length) for length, count in enumerate(tokens)]
    speeds = [1.0 / costs.round_s(0)]
    for length, whole in enumerate(accumulate(rates, mul), start=1):
        # The token behind a whole proposal is the next one's first. whole: probability that there is a next one.
        round_s = (1.0 - whole) * costs.round_s(length) + whole * costs.following_s(length)
        speeds.append(tokens[length - 1] / round_s)
    return speeds


def best_length(rates: Sequence[float], costs: RoundCosts, least: int = 0) -> int:
    """K*: where the throughput is largest, from `least` to len(rates); the shortest of equals."""
    speeds = throughputs(rates, costs)
    return speeds.index(max(speeds[least:]), least)


class LengthPolicy(Protocol):
    """Chooses the length of each proposal of one session; a chooser has the state of that session."""

    def choose(self, rates: Sequence[float], costs: RoundCosts, error: float = 0.0) -> int:
        """Tokens to propose now, at least 0. rates: by position, [max_length]; error: their standard error."""

    def observe(self, length: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """A round has ended. length: tokens that were proposed, 0 for a token of the decider alone.

        confidences: the drafter's probabilities of the proposed tokens, [length]; empty: not known.
        """


@dataclass(slots=True)
class FixedLength:
    """A fixed length."""

    length: int

    def choose(self, rates: Sequence[float], costs: RoundCosts, error: float = 0.0) -> int:
        """The fixed length."""
        return self.length

    def observe(self, length: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """Nothing to learn."""


class BestLength:
    """K* of the present estimates, changed only for a gain, and tried again from time to time where it is 0."""

    def __init__(self, num_alone: int = 0) -> None:
        """num_alone: rounds of earlier sessions without a proposal, since proposals last were tried."""
        self._length = 0
        self.num_alone = num_alone  # with those of this session

    def choose(self, rates: Sequence[float], costs: RoundCosts, error: float = 0.0) -> int:
        """The length in use, unless another promises MIN_GAIN more."""
        best, speeds = self._best(rates, costs, error), throughputs(rates, costs)
        is_resuming = best > 0 and self._length == 0
        if is_resuming or speeds[best] > (1.0 + MIN_GAIN) * speeds[self._length]:
            self._length = best
        if self._length == 0 and self._may_probe(costs):
            return min(PROBE_LENGTH, len(rates))
        return self._length

    def _best(self, rates: Sequence[float], costs: RoundCosts, error: float) -> int:
        """Without proposals nothing is learned, so 0 is best only if it still is for rates too low by `error`."""
        best = best_length(rates, costs)
        if best == 0 and best_length([min(1.0, rate + error) for rate in rates], costs) > 0:
            return best_length(rates, costs, least=1)
        return best

    def observe(self, length: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """Counts the rounds without a proposal."""
        self.num_alone = 0 if length else self.num_alone + 1

    def _may_probe(self, costs: RoundCosts) -> bool:
        return PROBING_SHARE * self.num_alone * costs.alone_s >= costs.round_s(PROBE_LENGTH)


LENGTH_POLICIES = Loader[LengthPolicy](
    "length policy",
    "decoding.length_policy",
    "scheduler.parameters",
    ("choose", "observe"),
    "the device",
)


def make_length_policy(name: str, max_length: int) -> LengthPolicy:
    """A policy for one query. max_length: tokens of its longest proposal.

    Raises ConfigError for a custom policy that this process has not loaded.
    """
    match name:
        case "fixed":
            return FixedLength(max_length)
        case "best":
            return BestLength()
    return LENGTH_POLICIES.make(name, max_length=max_length)


def load_length_policy(name: str, parameters: Parameters, where: str) -> None:
    """Load the policy that a party's own settings name; nothing if it is built in. As `Loader.load`."""
    LENGTH_POLICIES.load(name, parameters, where, max_length=1)
