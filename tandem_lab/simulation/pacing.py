"""How long an answer of a drafter and a decider takes, by a virtual clock: three pacings and what they compare with.

- `stop_and_wait`: the device drafts a proposal, sends it in one frame and waits for the verdict (SQS, QS, FlexSpec).
- `pipelined`: it keeps drafting and sending behind what it sent, up to a window.
- `cloud_goes_on`: the same, and the cloud commits its own next token whenever no proposal that continues the committed
  tokens is there.

Length 0 gives the baselines: under `stop_and_wait` the cloud is asked for each token, under `cloud_goes_on` it streams
by itself. No tokens are drawn: whether the device's token for a step is the cloud's is given, as coupled drafts have it
(it depends on the committed tokens alone). Where the cloud goes on, verdicts wait for a full link and travel together,
and proposals wait as long as they are of use, by the same `SendWindow` as in the protocol.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, nan
from typing import Literal

from tandem.profiler.rounds import ProposalAcceptance
from tandem.protocol.peer import RECEIPT_S
from tandem.protocol.send_window import MAX_WAITING_TOKENS, SendWindow
from tandem.scheduler.lengths import MAX_LENGTH, FixedLength, LengthPolicy, RoundCosts
from tandem_lab.numbers import ratio

WINDOW = 64
"""Tokens that the device drafts behind those it knows to be committed, at most."""
ID_BYTES = 2.0
"""Of a token in a verdict."""
Pacing = Literal["stop_and_wait", "pipelined", "cloud_goes_on"]
PACINGS: tuple[Pacing, ...] = ("stop_and_wait", "pipelined", "cloud_goes_on")


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
    down_bytes: float = 92.0  # of a verdict on one token, and ID_BYTES for each that it has more
    open_s: float = 0.0  # from the question to the first pass at the cloud, beside half a round trip

    def costs(self, pacing: Pacing) -> RoundCosts:
        """What the device chooses lengths by."""
        frames_s = 8 * (self.up_bytes + self.down_bytes) / self.bits_per_s
        alone_s = self.pass_s + self.token_s
        return RoundCosts(
            fixed_s=self.rtt_s + frames_s + self.pass_s + self.token_s,
            token_s=self.draft_s + self.token_s + 8 * self.proposed_bytes / self.bits_per_s,
            alone_s=alone_s if pacing == "cloud_goes_on" else alone_s + self.rtt_s + frames_s,
            draft_s=self.draft_s if pacing == "pipelined" else nan,
            pass_s=alone_s,
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


def pace_s(answers: Sequence[Sequence[float]]) -> float:
    """Seconds per token of answers, each of which tells when its tokens came. The first frame's are where time begins.

    nan if all came with the first.
    """
    later = [(times_s, sum(at_s > times_s[0] for at_s in times_s)) for times_s in answers if times_s]
    return ratio(sum(times_s[-1] - times_s[0] for times_s, num in later if num), sum(num for _, num in later))


# ---- one TCP connection ------------------------------------------------------------------------------------

Way = Literal["up", "down"]

ACK_BYTES = 66.0
"""Of an acknowledgement by itself: TCP, IP and Ethernet."""
ACK_S = 0.04
"""Linux waits so long for a frame that it can travel with."""


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def at(self, at_s: float, event: Callable[[], None]) -> None:
        """Let this happen then; of events at the same time the first one that was asked for is first."""
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def step(self) -> None:
        """The next event. There must be one."""
        self.now_s, _, event = heapq.heappop(self._events)
        event()


class Connection:
    """Both directions of one connection."""

    def __init__(self, clock: Clock, link: Callable[[], tuple[float, float]]) -> None:
        """link: the round trip in seconds and the bits per second each way, now."""
        self.num_bytes: dict[Way, float] = {"up": 0.0, "down": 0.0}
        self._clock, self._link = clock, link
        self._free_s: dict[Way, float] = {"up": 0.0, "down": 0.0}  # when the last packet is out
        self._num_owed: dict[Way, int] = {
            "up": 0,
            "down": 0,
        }  # frames without an acknowledgement, by its direction

    def send(self, way: Way, num_bytes: float, event: Callable[[], None]) -> None:
        """A frame with all headers; `event` happens when it has arrived."""
        self._num_owed[way] = 0
        arrives_s = self._transmit(way, num_bytes)
        self._clock.at(arrives_s, lambda: self._arrive(way, event))

    def _transmit(self, way: Way, num_bytes: float) -> float:
        """Behind what is still being sent; returns when it arrives."""
        rtt_s, bits_per_s = self._link()
        self.num_bytes[way] += num_bytes
        self._free_s[way] = max(self._clock.now_s, self._free_s[way]) + 8 * num_bytes / bits_per_s
        return self._free_s[way] + rtt_s / 2

    def _arrive(self, way: Way, event: Callable[[], None]) -> None:
        back: Way = "down" if way == "up" else "up"
        self._num_owed[back] += 1
        if self._num_owed[back] == 1:
            self._clock.at(self._clock.now_s + ACK_S, lambda: self._acknowledge(back))
        event()

    def _acknowledge(self, way: Way) -> None:
        if self._num_owed[way]:
            self._num_owed[way] = 0
            self._transmit(way, ACK_BYTES)


# ---- an answer ---------------------------------------------------------------------------------------------


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


class _Sender:
    """What one party has sent over the link, as echoes show it to have arrived."""

    def __init__(self) -> None:
        self.window, self._sent_s = SendWindow(), list[float]()
        self._heard, self._heard_s = 0, 0.0  # stamp of the other party's newest frame, and when it came

    def send(self, now_s: float) -> tuple[int, int, float]:
        """A frame goes out: its own stamp, the one that it echoes, and how long that was held."""
        self._sent_s.append(now_s)
        self.window.send(len(self._sent_s))
        return len(self._sent_s), self._heard, now_s - self._heard_s

    def hear(self, header: tuple[int, int, float], now_s: float) -> None:
        """A frame of the other party has arrived."""
        self._heard, echo, held_s = header
        self._heard_s = now_s
        if echo:
            self.window.receive(echo, now_s - held_s - self._sent_s[echo - 1])


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
        self._clock = Clock()
        self._connection = Connection(self._clock, lambda: (self._now.rtt_s, self._now.bits_per_s))
        self._conditions, self._pacing, self._policy = conditions, pacing, policy
        self._is_accepted, self._num_tokens, self._window = is_accepted, num_tokens, window
        self._acceptance = ProposalAcceptance(max_length)
        self._line, self._length, self._known = _Line(0, 0, 0, inf), 0, 0  # the device
        self._is_drafting = self._is_waiting = False
        self._up, self._owes_receipt = _Sender(), False
        self._held: list[tuple[_Line, int, int]] = []  # proposals that wait, by line, begin and end
        self._committed, self._is_passing, self._is_asked = 0, False, False  # the cloud
        self._down, self._posted = _Sender(), 0  # steps in verdicts that were sent
        self._arrived: tuple[_Line, int] | None = None  # the newest line, and up to which step it has arrived
        self._times_s: list[float] = []
        self._num_passes = self._num_proposed = self._num_accepted = 0
        self._lengths: list[tuple[float, int]] = []

    @property
    def _now(self) -> Conditions:
        return self._conditions(self._clock.now_s) if callable(self._conditions) else self._conditions

    def run(self) -> Timing:
        """All events until the answer is complete."""
        self._is_passing = True  # until the question is there
        self._clock.at(self._now.rtt_s / 2 + self._now.open_s, self._begin)
        self._propose()
        while self._known < self._num_tokens:
            self._clock.step()
        return Timing(
            committed_s=tuple(self._times_s[: self._num_tokens]),
            num_passes=self._num_passes,
            num_proposed=self._num_proposed,
            num_accepted=self._num_accepted,
            up_bytes=self._connection.num_bytes["up"],
            down_bytes=self._connection.num_bytes["down"],
            lengths=tuple(self._lengths),
        )

    # ---- the device ------------------------------------------------------------------------------------------

    def _propose(self) -> None:
        """Choose the next proposal's length, and begin it."""
        if self._is_drafting or self._is_waiting:
            return
        rates, error = self._acceptance.rates, self._acceptance.error
        self._length = self._policy.choose(rates, self._now.costs(self._pacing), error)
        self._lengths.append((self._clock.now_s, self._length))
        if self._length:
            self._draft()
        elif self._pacing != "cloud_goes_on":
            self._is_waiting = True
            self._send_up(self._now.up_bytes, self._ask)

    def _draft(self) -> None:
        line = self._line
        if line.end - self._known < self._window:
            self._is_drafting = True
            self._clock.at(self._clock.now_s + self._now.draft_s, lambda: self._drafted(line))

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
        self._held.append((line, begin, end))
        self._release()
        self._is_waiting = self._pacing == "stop_and_wait"
        self._propose()

    def _release(self) -> None:
        """Send the proposals that wait, if the voter does, or while the link has room for those that are of use."""
        may_wait = self._pacing == "cloud_goes_on"
        if may_wait:
            self._held = [kept for kept in self._held if kept[0] is self._line and kept[2] > self._known]
        while self._held and not (may_wait and self._up.window.is_full):
            line, begin, end = self._held.pop(0)
            num_bytes = self._now.up_bytes + (end - begin) * self._now.proposed_bytes
            self._send_up(num_bytes, partial(self._receive, line, end))

    def _send_up(self, num_bytes: float, event: Callable[[], None]) -> None:
        """A frame of the device; each one has the receipts of verdicts, and echoes the newest one."""
        header, self._owes_receipt = self._up.send(self._clock.now_s), False

        def arrive() -> None:
            self._down.hear(header, self._clock.now_s)
            self._post()
            event()

        self._connection.send("up", num_bytes, arrive)

    def _give_receipt(self) -> None:
        if self._owes_receipt:
            self._send_up(self._now.up_bytes, lambda: None)

    def _learn(self, committed: int, header: tuple[int, int, float]) -> None:
        """A verdict: the steps before `committed` are decided."""
        now_s = self._clock.now_s
        self._up.hear(header, now_s)
        if not self._owes_receipt:
            self._owes_receipt = True
            self._clock.at(now_s + max(RECEIPT_S, self._now.rtt_s / 2), self._give_receipt)
        self._times_s += [now_s] * (committed - self._known)
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
        self._release()
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
        if self._is_passing or self._committed >= self._num_tokens:
            return
        num_tokens = min(self._usable(), self._window)
        if num_tokens or self._is_asked or self._pacing == "cloud_goes_on":
            self._is_passing, self._is_asked = True, False
            self._num_passes += 1
            lasts_s = self._now.pass_s + (num_tokens + 1) * self._now.token_s
            self._clock.at(self._clock.now_s + lasts_s, lambda: self._decide(num_tokens))

    def _decide(self, num_tokens: int) -> None:
        """The pass over so many proposed tokens ends: those that are right are committed, and one more."""
        num_right = 0
        while num_right < num_tokens and self._is_accepted(self._committed + num_right):
            num_right += 1
        self._num_accepted += num_right
        self._committed += num_right + 1
        self._post()
        self._is_passing = False
        self._pass()

    def _post(self) -> None:
        """A verdict on all steps that none was sent on, unless it may wait for a full link and should."""
        committed, num_tokens = self._committed, self._committed - self._posted
        may_wait = self._pacing == "cloud_goes_on" and committed < self._num_tokens
        if num_tokens == 0 or (may_wait and self._down.window.is_full and num_tokens <= MAX_WAITING_TOKENS):
            return
        self._posted = committed
        header = self._down.send(self._clock.now_s)
        num_bytes = self._now.down_bytes + (num_tokens - 1) * ID_BYTES
        self._connection.send("down", num_bytes, lambda: self._learn(committed, header))
