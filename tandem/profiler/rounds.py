"""What a round of proposals costs and what it brings, estimated from the rounds so far.

A round lasts from the first draft to the verdict. Its time is split into what grows with the proposed tokens (drafting,
sending and verifying them) and what does not (round trip, the decider's pass, frames), as `RoundCosts` has it. Only
round trips are used, never one-way times, so the clocks of the two hosts need not agree.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from math import isfinite, isnan, nan

from tandem.profiler.acceptance import ProposalAcceptance
from tandem.profiler.estimates import RTT_SHARE
from tandem.profiler.moving import MovingAverage, MovingLine
from tandem.scheduler.proposal_length import RoundCosts

MIN_TOKEN_S = 1e-6
"""A proposed token costs at least this, or the ratio of both costs would have no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRound:
    """One proposal with its verdict, or one token that the decider committed without a proposal."""

    length: int  # tokens that were proposed; 0: none
    num_accepted: int  # those before the first rejected one
    draft_s: float  # the drafter's passes, in seconds
    num_bytes: int  # of the proposed tokens as they are sent, without the frame
    waited_s: (
        float  # from the proposal to its verdict; without one: since the token before; nan: not measured
    )
    rtt_s: float  # the last round trip; nan: not measured yet
    bytes_per_s: float  # of the link towards the decider; nan: not measured yet, inf: too much to measure


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

    def add(self, measured: MeasuredRound) -> None:
        """Take in a round."""
        length = measured.length
        if length:
            self.acceptance.observe(length, measured.num_accepted)
            self._draft_s.add(measured.draft_s / length)
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
