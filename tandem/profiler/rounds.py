"""Estimates of the cost and the yield of a round of proposals, from the rounds so far.

A round lasts from the first draft to the verdict. Its time is split into what grows with the proposed tokens (drafting,
sending and verifying them) and what does not (round trip, the decider's pass, frames), as `RoundCosts` has it. Only
round trips are used, never one-way times, so the clocks of the two hosts need not agree.
"""

from __future__ import annotations

from copy import deepcopy
from math import isfinite, isnan, nan, sqrt

from tandem.messages import Round
from tandem.profiler.estimates import RTT_SHARE, MovingAverage, MovingLine
from tandem.scheduler.lengths import RoundCosts

# ---- How often a proposed token is accepted ----------------------------------------------------------------


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
        """The acceptance rate in [0, 1], the prior included."""
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
        """Acceptance rates by position, [max_length]: its own rate where it is known well enough, else the common
        one."""
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


MIN_TOKEN_S = 1e-6
"""A proposed token costs at least this, or the ratio of both costs would have no bound."""


class RoundEstimator:
    """Acceptance and times of one drafter's rounds.

    What a token takes on the link is its bytes over the measured rate. The rest of a wait is the round trip, which
    follows quickly, and the pass of the decider, on a line over the number of tokens; if round trip and bytes were
    fitted on one line, a length that follows the link would look like the cause of its delay.
    """

    def __init__(self, max_length: int, *, goes_on: bool = False, is_pipelined: bool = False) -> None:
        """max_length: tokens of the longest proposal. goes_on: the decider does not wait for proposals; is_pipelined:
        nor does the drafter for verdicts, and the decider for proposals."""
        self.acceptance = ProposalAcceptance(max_length)
        self._goes_on, self._is_pipelined = goes_on, is_pipelined
        self._draft_s, self._token_bytes = MovingAverage(), MovingAverage()
        self._rtt_s = MovingAverage(RTT_SHARE)
        self._pass_s = MovingLine()
        self._alone_s = MovingAverage()
        self._bytes_per_s = nan

    def add(self, measured: Round) -> None:
        """Take in one proposal with its verdict, or one token that the decider committed without a proposal."""
        length = measured.length
        if length:
            self.acceptance.observe(length, measured.num_accepted)
            self._draft_s.add(measured.draft_us / 1e6 / length)
            self._token_bytes.add(measured.num_bytes / length)
        if not isnan(measured.bytes_per_s):
            self._bytes_per_s = measured.bytes_per_s
        if length == 0 and self._goes_on:
            self._alone_s.add(measured.waited_s)
        elif isfinite(measured.waited_s) and isfinite(measured.rtt_s):
            unsent_s = max(0.0, measured.waited_s - self._send_s(measured.num_bytes))
            rtt_s = min(measured.rtt_s, unsent_s)
            self._rtt_s.add(rtt_s)
            self._pass_s.add(length, unsent_s - rtt_s)

    @property
    def costs(self) -> RoundCosts:
        """Seconds; nan where nothing is known."""
        fixed_s = self._rtt_s.value + self._pass_s.intercept
        draft_s = 0.0 if isnan(self._draft_s.value) else self._draft_s.value
        token_s = draft_s + self._pass_s.slope + self._send_s(self._token_bytes.value)
        alone_s = fixed_s  # the token is asked for
        if self._goes_on:
            alone_s = self._pass_s.intercept if isnan(self._alone_s.value) else self._alone_s.value
        return RoundCosts(
            fixed_s=max(fixed_s, MIN_TOKEN_S),
            token_s=max(token_s, MIN_TOKEN_S),
            alone_s=max(alone_s, MIN_TOKEN_S),
            draft_s=draft_s if self._is_pipelined else nan,
            pass_s=self._pass_s.intercept if self._is_pipelined else 0.0,
        )

    def _send_s(self, num_bytes: float) -> float:
        """Seconds that bytes take on the link, as far as its rate is known."""
        is_known = self._bytes_per_s > 0.0 and isfinite(num_bytes)
        return num_bytes / self._bytes_per_s if is_known else 0.0

    def carry_over(self, *, acceptance: bool, is_pipelined: bool = False) -> RoundEstimator:
        """An independent estimator for the next query. acceptance: whether the rates still apply."""
        estimator = deepcopy(self)
        estimator._is_pipelined = is_pipelined
        if not acceptance:
            estimator.acceptance = ProposalAcceptance(len(self.acceptance.rates))
        return estimator
