"""How often a proposed token is accepted, learned from verdicts on whole proposals.

A verdict on a proposal of K tokens of which n were accepted judges min(n + 1, K) tokens: what stands behind the first
rejected one says nothing. Accepted over judged is the maximum-likelihood estimate of a geometric distribution that is
cut off at K, whatever K is; accepted over proposed, as FlexSpec Algorithm 2 averages it, is not: with a rate of 0.8
it gives 0.42 at K = 8.
"""

from __future__ import annotations

from math import sqrt

LONG_SHARE, SHORT_SHARE = 0.995, 0.9
"""What remains of earlier evidence per judged token: the long memory counts about 200 of them, the short one 10."""
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 2.0
"""Before any verdict, as if so many tokens had been judged with that rate."""
NUM_SIGMAS = 3.5
"""Standard errors between the two memories beyond which the rate is taken to have changed."""
MIN_JUDGED = 30.0
"""Judged tokens at a position from which its own rate counts."""


class Evidence:
    """Tokens accepted of tokens judged; older ones count less."""

    __slots__ = ("accepted", "judged", "share")

    def __init__(self, share: float, accepted: float = 0.0, judged: float = 0.0) -> None:
        """share: what remains of earlier evidence when one more token is judged."""
        self.share, self.accepted, self.judged = share, accepted, judged

    @property
    def rate(self) -> float:
        """In [0, 1], the prior included."""
        return (self.accepted + PRIOR_RATE * PRIOR_WEIGHT) / (self.judged + PRIOR_WEIGHT)

    def add(self, *, is_accepted: bool) -> None:
        """One more judged token."""
        self.accepted = self.share * self.accepted + is_accepted
        self.judged = self.share * self.judged + 1.0


class ProposalAcceptance:
    """The acceptance rate of one drafter's proposals, by the position of a token in its proposal.

    It has a long memory, whose noise is small, and a short one. Where they differ by more than chance explains, the
    rate has changed: the long memory then starts again from the short one.
    """

    def __init__(self, max_length: int) -> None:
        """max_length: tokens of the longest proposal, at least 1."""
        self._long, self._short = Evidence(LONG_SHARE), Evidence(SHORT_SHARE)
        self._by_position = [Evidence(LONG_SHARE) for _ in range(max_length)]

    @property
    def rate(self) -> float:
        """Probability that a token is accepted if those before it in its proposal are, in [0, 1]."""
        return self._long.rate

    @property
    def rates(self) -> tuple[float, ...]:
        """The same by position, [max_length]: its own rate where it is known well enough, else the common one."""
        return tuple(
            each.accepted / each.judged if each.judged >= MIN_JUDGED else self.rate
            for each in self._by_position
        )

    @property
    def error(self) -> float:
        """Standard error of the rate: how much of it may be chance."""
        return sqrt(0.25 / (self._long.judged + PRIOR_WEIGHT))

    def observe(self, length: int, num_accepted: int) -> None:
        """A verdict. length: tokens of the proposal; num_accepted: those before the first rejected one."""
        for position in range(min(num_accepted + 1, length)):
            is_accepted = position < num_accepted
            for evidence in (self._long, self._short, self._by_position[position]):
                evidence.add(is_accepted=is_accepted)
        if self._has_changed():
            self._long = Evidence(LONG_SHARE, self._short.accepted, self._short.judged)
            self._by_position = [Evidence(LONG_SHARE) for _ in self._by_position]

    def _has_changed(self) -> bool:
        long, short = self._long, self._short
        variance = max(long.rate * (1.0 - long.rate), 0.01)
        # Of exponentially weighted evidence about half counts as independent.
        sigma = sqrt(variance * (0.5 / short.judged + 0.5 / long.judged)) if short.judged else 1.0
        return abs(long.rate - short.rate) > NUM_SIGMAS * sigma
