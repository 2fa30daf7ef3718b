"""How long an answer of a drafter and a decider takes, by a virtual clock: three pacings and what they compare with.

- `stop_and_wait`: the device drafts a proposal, sends it in one frame and waits for the verdict (SQS, QS, FlexSpec).
- `pipelined`: it goes on drafting and sending behind what it sent, up to a window.
- `cloud_goes_on`: the same, and the cloud commits its own next token whenever no proposal that continues the committed
  tokens is there.

Length 0 gives the baselines: under `stop_and_wait` the cloud is asked for each token, under `cloud_goes_on` it streams
by itself. No tokens are drawn: whether the device's token for a step is the cloud's is given, as coupled drafts have it
(it depends on the committed tokens alone). The link sends frames one after the other in each direction.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from tandem.lab.numbers import ratio
from tandem.profiler.acceptance import ProposalAcceptance
from tandem.scheduler.proposal_length import MAX_LENGTH, FixedLength, LengthPolicy, RoundCosts

Pacing = Literal["stop_and_wait", "pipelined", "cloud_goes_on"]
PACINGS: tuple[Pacing, ...] = ("stop_and_wait", "pipelined", "cloud_goes_on")
WINDOW = 64
"""Tokens that the device drafts behind those it knows to be committed, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A link, two models, and the sizes of frames. Frames count with all headers, as a capture sees them."""

    rtt_s: float
    bits_per_s: float = inf  # each way
    draft_s: float = 0.015  # a token of the device
    pass_s: float = 0.025  # of the cloud, and token_s for each token that it is fed
    token_s: float = 0.002
    up_bytes: float = 92.0  # of a proposal without its tokens
    proposed_bytes: float = 2.0  # of a proposed token, with its distribution where one is sent
    down_bytes: float = 92.0  # of a verdict
    open_s: float = 0.0  # from the question to the first pass at the cloud, beside half a round trip

    def costs(self, pacing: Pacing) -> RoundCosts:
        """What the device chooses lengths by."""
        frames_s = 8 * (self.up_bytes + self.down_bytes) / self.bits_per_s
        alone_s = self.pass_s + self.token_s
        return RoundCosts(
            fixed_s=self.rtt_s + frames_s + self.pass_s + self.token_s,
            token_s=self.draft_s + self.token_s + 8 * self.proposed_bytes / self.bits_per_s,
            alone_s=alone_s if pacing == "cloud_goes_on" else alone_s + self.rtt_s + frames_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One answer."""

    committed_s: tuple[float, ...]  # when the device knows each token, since the question
    num_passes: int  # of the cloud
    num_proposed: int  # tokens that were sent
    num_accepted: int  # tokens of the answer that the cloud took from a proposal
    up_bytes: float
    down_bytes: float
    lengths: tuple[tuple[float, int], ...] = ()  # when a proposal was begun, and its length

    @property
    def num_tokens(self) -> int:
        """Of the answer."""
        return len(self.committed_s)

    @property
    def first_s(self) -> float:
        """Until the first token."""
        return self.committed_s[0]

    @property
    def token_s(self) -> float:
        """Seconds per token after those that came first; nan if they came at once."""
        return pace_s([self.committed_s])

    @property
    def passes_per_token(self) -> float:
        """Of the cloud."""
        return ratio(self.num_passes, self.num_tokens)


def pace_s(answers: Sequence[Sequence[float]]) -> float:
    """Seconds per token of answers, each of which tells when its tokens came. The first frame's are where time begins.

    nan if all came with the first.
    """
    later = [(times_s, sum(at_s > times_s[0] for at_s in times_s)) for times_s in answers if times_s]
    return ratio(sum(times_s[-1] - times_s[0] for times_s, num in later if num), sum(num for _, num in later))


def draw_accepted(rate: float, seed: int) -> Callable[[int], bool]:
    """Whether the device's token for a step is the cloud's: independent of all others, with this probability."""
    rng, drawn = random.Random(seed), list[bool]()

    def is_accepted(step: int) -> bool:
        while len(drawn) <= step:
            drawn.append(rng.random() < rate)
        return drawn[step]

    return is_accepted


def play_answer(
    conditions: Conditions | Callable[[float], Conditions],
    pacing: Pacing,
    policy: LengthPolicy | int,
    is_accepted: Callable[[int], bool] | Sequence[bool],
    num_tokens: int,
    window: int = WINDOW,
    max_length: int = MAX_LENGTH,
) -> Timing:
    """An answer of so many tokens. conditions: fixed, or by the time; is_accepted: by step."""
    accepted = is_accepted if callable(is_accepted) else is_accepted.__getitem__
    own = FixedLength(policy) if isinstance(policy, int) else policy
    return _Run(conditions, pacing, own, accepted, num_tokens, window, max_length).run()


def device_alone(draft_s: float, num_tokens: int) -> Timing:
    """The device decodes by itself."""
    times_s = tuple(draft_s * (step + 1) for step in range(num_tokens))
    return Timing(
        committed_s=times_s, num_passes=0, num_proposed=0, num_accepted=0, up_bytes=0.0, down_bytes=0.0
    )


@dataclass(slots=True)
class _Line:
    """Tokens that the device drafted one after the other, from one committed prefix."""

    base: int  # step of the first
    end: int  # behind the last drafted one
    sent: int  # behind the last one in a frame
    wrong: float  # the first step at which it is not the cloud's token, as far as drafted; inf: none
    proposals: list[tuple[int, int]] = field(
        default_factory=list
    )  # begin and end of frames without a verdict


class _Run:
    """The discrete-event run behind `play_answer`."""

    def __init__(
        self,
        conditions: Conditions | Callable[[float], Conditions],
        pacing: Pacing,
        policy: LengthPolicy,
        is_accepted: Callable[[int], bool],
        num_tokens: int,
        window: int,
        max_length: int,
    ) -> None:
        self.now_s = 0.0
        self._conditions, self._pacing, self._policy = conditions, pacing, policy
        self._is_accepted, self._num_tokens, self._window = is_accepted, num_tokens, window
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._free_s = {"up": 0.0, "down": 0.0}
        self._bytes = {"up": 0.0, "down": 0.0}
        self._acceptance = ProposalAcceptance(max_length)
        self._line, self._length, self._known = _Line(0, 0, 0, inf), 0, 0  # the device
        self._is_drafting = self._is_waiting = False
        self._committed, self._is_passing, self._is_asked = 0, False, False  # the cloud
        self._arrived: tuple[_Line, int] | None = None  # the newest line, and up to which step it has arrived
        self._times_s: list[float] = []
        self._num_passes = self._num_proposed = self._num_accepted = 0
        self._lengths: list[tuple[float, int]] = []

    @property
    def _now(self) -> Conditions:
        return self._conditions(self.now_s) if callable(self._conditions) else self._conditions

    def run(self) -> Timing:
        """All events until the answer is complete."""
        self._is_passing = True  # until the question is there
        self._at(self._now.rtt_s / 2 + self._now.open_s, self._begin)
        self._propose()
        while self._known < self._num_tokens:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        return Timing(
            committed_s=tuple(self._times_s[: self._num_tokens]),
            num_passes=self._num_passes,
            num_proposed=self._num_proposed,
            num_accepted=self._num_accepted,
            up_bytes=self._bytes["up"],
            down_bytes=self._bytes["down"],
            lengths=tuple(self._lengths),
        )

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def _send(self, way: str, num_bytes: float, event: Callable[[], None]) -> None:
        """A frame, behind those that are still being sent."""
        self._bytes[way] += num_bytes
        begin_s = max(self.now_s, self._free_s[way])
        self._free_s[way] = begin_s + 8 * num_bytes / self._now.bits_per_s
        self._at(self._free_s[way] + self._now.rtt_s / 2, event)

    # ---- the device ------------------------------------------------------------------------------------------

    def _propose(self) -> None:
        """Choose the next proposal's length, and begin it."""
        if self._is_drafting or self._is_waiting:
            return
        rates, error = self._acceptance.rates, self._acceptance.error
        self._length = self._policy.choose(rates, self._now.costs(self._pacing), error)
        self._lengths.append((self.now_s, self._length))
        if self._length:
            self._draft()
        elif self._pacing != "cloud_goes_on":
            self._is_waiting = True
            self._send("up", self._now.up_bytes, self._ask)

    def _draft(self) -> None:
        line = self._line
        if line.end - self._known < self._window:
            self._is_drafting = True
            self._at(self.now_s + self._now.draft_s, lambda: self._drafted(line))

    def _drafted(self, line: _Line) -> None:
        if line is not self._line:
            return  # abandoned
        self._is_drafting = False
        if line.wrong == inf and not self._is_accepted(line.end):
            line.wrong = line.end
        line.end += 1
        if line.end - line.sent < self._length and line.end - self._known < self._window:
            self._draft()
            return
        begin, end = line.sent, line.end
        line.sent = end
        line.proposals.append((begin, end))
        self._num_proposed += end - begin
        num_bytes = self._now.up_bytes + (end - begin) * self._now.proposed_bytes
        self._send("up", num_bytes, lambda: self._receive(line, end))
        self._is_waiting = self._pacing == "stop_and_wait"
        self._propose()

    def _learn(self, committed: int) -> None:
        """A verdict: the steps before `committed` are decided."""
        self._times_s += [self.now_s] * (committed - self._known)
        alone = committed - self._known == 1 and not self._line.proposals
        self._known, line, self._is_waiting = committed, self._line, False
        if alone:
            self._policy.observe(0, 0)
        while line.proposals and (line.proposals[0][1] <= committed or line.wrong < committed):
            begin, end = line.proposals.pop(0)
            if begin <= line.wrong:
                num_accepted = int(min(end, line.wrong)) - begin
                self._acceptance.observe(end - begin, num_accepted)
                self._policy.observe(end - begin, num_accepted)
        if line.wrong < committed or line.end < committed:
            self._line = _Line(committed, committed, committed, inf)
            self._is_drafting = False
        if line is self._line and line.end > line.sent and not self._is_drafting:
            self._draft()  # the window has opened within a proposal
        self._propose()

    # ---- the cloud -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._is_passing = False
        self._pass()

    def _ask(self) -> None:
        self._is_asked = True
        self._pass()

    def _receive(self, line: _Line, end: int) -> None:
        self._arrived = (line, end)
        self._pass()

    def _usable(self) -> int:
        """Arrived tokens that continue the committed ones, as far as the cloud can tell by their digest."""
        if self._arrived is None:
            return 0
        line, end = self._arrived
        return max(0, end - self._committed) if line.wrong >= self._committed >= line.base else 0

    def _pass(self) -> None:
        if self._is_passing:
            return
        num_tokens = min(self._usable(), self._window)
        if num_tokens or self._is_asked or self._pacing == "cloud_goes_on":
            self._is_passing, self._is_asked = True, False
            self._num_passes += 1
            lasts_s = self._now.pass_s + (num_tokens + 1) * self._now.token_s
            self._at(self.now_s + lasts_s, lambda: self._decide(num_tokens))

    def _decide(self, num_tokens: int) -> None:
        """The pass over so many proposed tokens ends: those that are right are committed, and one more."""
        num_right = 0
        while num_right < num_tokens and self._is_accepted(self._committed + num_right):
            num_right += 1
        self._num_accepted += num_right
        self._committed += num_right + 1
        committed = self._committed
        self._send("down", self._now.down_bytes, lambda: self._learn(committed))
        self._is_passing = False
        self._pass()
