"""All that one side of a session knows of one peer: frames on their way, what is not acknowledged, silence, and what
the peer has said of its own tokens.

As etcd-raft's `Progress`: one object per peer. Time and the committed prefix come in as arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

from tandem.messages import (
    Heartbeat,
    LinkBody,
    LinkFrame,
    ListRequest,
    Open,
    Probe,
    Sources,
    Verdict,
    Vote,
)
from tandem.protocol.link import (
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    PROBE_BYTES,
    Liveness,
    Problem,
    RoundTrips,
    SendWindow,
)
from tandem.protocol.log import MAX_AHEAD, Prefix
from tandem.protocol.routes import Send
from tandem.topology import at_start

HEARTBEAT_S = 0.25
"""A party that has sent nothing for this long, and for HEARTBEAT_RTTS round trips, sends a heartbeat."""
HEARTBEAT_RTTS = 1.5
"""Well below the 4 round trips of silence after which a peer counts as lost. Heartbeats four times a second would fill
half of a link of 10 kbit/s, whose round trip is long because it is slow."""
RECEIPT_S = 0.1
"""A receipt waits at most this long, or half a round trip, for a frame to travel with."""
MAX_RECEIPTS = 4096
"""Receipts that wait for a frame; of more bodies at once the rest is not acknowledged, so it comes again."""
SLOWEST_BYTES_PER_S = 1250.0
"""Before anything is known of the link an opening has as long as it takes at 10 kbit/s; history makes it long."""
_SILENT = "{} has been silent for {:.1f} s; check the link."
_STALLED = "{} is there, but has sent nothing that the answer needs for {:.1f} s; see its log."
MAX_ANSWERED = 64
"""Restarts of a peer that are remembered; one before these would be answered again."""

Numbered: TypeAlias = Vote | Verdict | Sources | ListRequest
"""Bodies whose receipt is acknowledged."""


class Backoff:
    """The time to do something again: from one time to the next the wait doubles, up to a limit, until it starts over.

    `extra_s` is added to every wait.
    """

    def __init__(self, now_s: float, first_s: float, most_s: float) -> None:
        self.extra_s = 0.0
        self._first_s, self._most_s = first_s, most_s
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """The wait starts over."""
        self._since_s, self._wait_s = now_s, self._first_s

    def take_due(self, now_s: float, least_s: float = 0.0) -> bool:
        """Whether it is time, after the wait or `least_s`, whichever is longer; then the next wait begins."""
        if now_s - self._since_s < max(self._wait_s, least_s) + self.extra_s:
            return False
        self._since_s, self._wait_s = now_s, min(2 * self._wait_s, self._most_s)
        return True


@dataclass(slots=True)
class Sent:
    """A body that was sent, and how the sending went."""

    body: Numbered
    sent_s: float
    num_sent: int = 1
    is_received: bool = False


class Deliveries:
    """The bodies with a number of one view, both ways: sent ones, and the numbers of received ones to be acknowledged.

    Invariants: a number names one body for ever. A body is resent until the peer has acknowledged its receipt, and kept
    until the peer has committed its step or no committed prefix can need it any more; a request until its step is
    committed here; what has no step is kept to the end of the view. Every arrival is acknowledged once, a repeated one
    too, but for those beyond MAX_RECEIPTS; an acknowledgement that is lost costs a resend.
    """

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.received: list[int] = []  # not acknowledged yet
        self.num_resent = 0  # frames, those of bodies without a number included
        self._received_s = 0.0  # since when the first of them has waited
        self._last_number = 0  # 0 stands for a body that needs no receipt

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def bodies(self) -> list[Numbered]:
        """The bodies that are kept, in the order in which they were first sent."""
        return [sent.body for sent in self.sent.values()]

    def add(self, body: Numbered, now_s: float) -> int:
        """Keep a body that is sent now; returns its number."""
        self._last_number += 1
        self.sent[self._last_number] = Sent(body, now_s)
        return self._last_number

    def supersede(self, longer: Vote) -> None:
        """Forget a shorter list of the same vote."""
        self.sent = {key: sent for key, sent in self.sent.items() if not _is_shorter(sent.body, longer)}

    def receive(self, number: int, now_s: float) -> None:
        """A body with this number has arrived, and is held or no longer needed. 0: it needs no receipt."""
        if number == 0 or len(self.received) >= MAX_RECEIPTS:
            return
        if not self.received:
            self._received_s = now_s
        self.received.append(number)

    def is_acknowledgement_due(self, now_s: float, rtt_s: float = 0.0) -> bool:
        """Whether a frame should go out for the sake of what was received."""
        return bool(self.received) and now_s - self._received_s >= max(RECEIPT_S, rtt_s / 2)

    def take_received(self) -> tuple[int, ...]:
        """Take the received numbers for the header of a frame that is sent now."""
        numbers, self.received = tuple(self.received), []
        return numbers

    def acknowledge(self, numbers: tuple[int, ...], now_s: float) -> None:
        """The peer has these. It is alive, so what it lacks need not wait any longer than at first."""
        is_fresh = False
        for number in numbers:
            sent = self.sent.get(number)
            if sent is not None and not sent.is_received:
                sent.is_received = is_fresh = True
        for sent in self.sent.values() if is_fresh else ():
            if not sent.is_received and sent.num_sent > 1:
                sent.num_sent, sent.sent_s = 1, now_s

    def take_overdue(self, now_s: float, timeout_s: float) -> dict[int, Numbered]:
        """Take what is to be sent again now: not received within the timeout, which doubles each time."""
        overdue: dict[int, Numbered] = {}
        for number, sent in self.sent.items():
            if sent.is_received or now_s - sent.sent_s < min(timeout_s, MAX_TIMEOUT_S):
                continue
            wait_s = min(timeout_s * 2 ** (sent.num_sent - 1), MAX_TIMEOUT_S)
            if now_s - sent.sent_s >= wait_s:
                overdue[number] = sent.body
                sent.num_sent += 1
                sent.sent_s = now_s
        return overdue

    def drop_committed(self, step: int) -> None:
        """The peer has committed all steps before `step`."""
        self.sent = {
            key: sent
            for key, sent in self.sent.items()
            if isinstance(sent.body, Sources) or _last_step(sent.body) >= step
        }

    def drop_dead(self, live: Container[bytes], step: int) -> None:
        """Drop votes from `step` on whose digest is not among the `live` ones, and requests for earlier steps."""
        self.sent = {key: sent for key, sent in self.sent.items() if not _is_dead(sent.body, live, step)}

    def clear(self) -> None:
        """A new view: whatever the peer needs in it is added again, and older numbers mean nothing in it."""
        self.sent.clear()
        self.received.clear()


class Claims:
    """The peer's claims about its own tokens: digests of counts that are not reached here yet, and its whole answer.

    Each digest is compared when its count is reached here.
    """

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}  # by count of tokens
        self._answer: tuple[int, bytes] | None = None  # the whole one: count and digest
        self._answered: deque[int] = deque(maxlen=MAX_ANSWERED)  # restarts that a Resync has answered

    def contradict(self, frame: LinkFrame, prefix: Prefix, *, is_complete: bool) -> bool:
        """Whether there are two digests for one count of committed tokens. prefix: the one committed here.

        is_complete: it is the whole answer here, and both parties apply one stop rule.
        """
        if frame.committed > len(prefix):
            if is_complete:
                return True
            if frame.committed <= len(prefix) + MAX_AHEAD:
                self.digests[frame.committed] = frame.committed_digest
        elif prefix.digests[frame.committed] != frame.committed_digest:
            return True
        reached = [count for count in self.digests if count <= len(prefix)]
        return any(self.digests.pop(count) != prefix.digests[count] for count in reached)

    def complete(self, frame: LinkFrame) -> None:
        """The peer has committed everything."""
        self._answer = frame.committed, frame.committed_digest

    def agree(self, prefix: Prefix) -> bool:
        """Whether the peer has said that its whole answer is this one."""
        return self._answer == (len(prefix), prefix.digest)

    def note_restart(self, incarnation: int) -> bool:
        """A peer that was restarted asks for a Resync; returns whether that restart was answered before."""
        if incarnation in self._answered:
            return True
        self._answered.append(incarnation)
        return False

    def clear(self) -> None:
        """A new view: what was claimed in the former one no longer counts."""
        self.digests.clear()
        self._answer = None


class Peer:
    """One peer within a session.

    Invariants: a vote or verdict that was posted is resent until the peer acknowledges its receipt, and kept
    until the peer has committed its step, or no branch can need it any more. Verdicts go out in step order; those that
    wait for a full link go out together. Proposals that wait for one go out in order, but for those that nothing can
    accept any more. Receipts and acknowledgements hold within one view.
    """

    def __init__(self, session: int, now_s: float, name: str = "", *, measures: bool = False) -> None:
        """measures: probe round trip and bandwidth when the first frame of the peer arrives."""
        self.session = session
        self.name = name
        self.view = 0
        self.seen_view = -1  # below 0: no frame of the peer has arrived yet
        self.num_committed = 0  # steps that the peer is known to have committed
        self.is_finished = False  # nothing is owed to it any more
        self.liveness = Liveness(now_s)
        self.round_trips = RoundTrips(now_s, measures=measures)
        self.window = SendWindow()
        self.deliveries = Deliveries()
        self.claims = Claims()
        self._repeats = Backoff(now_s, MIN_TIMEOUT_S, MAX_TIMEOUT_S)

    @property
    def is_lost(self) -> bool:
        """Whether the answer continues without it, until a Resync brings it back."""
        return self.liveness.is_lost

    @property
    def has_spoken(self) -> bool:
        """Whether any frame of the peer has arrived in this session."""
        return self.seen_view >= 0

    # ---- sending -----------------------------------------------------------------------------------------------

    def send(self, body: LinkBody, prefix: Prefix, now_s: float, number: int = 0) -> Send:
        """`body` under a header that says what this party has received and committed."""
        stamp, echo, held_us = self.round_trips.header(now_s)
        self.window.send(stamp)
        if isinstance(body, Open) and not self.has_spoken:
            self._repeats.extra_s = len(body.spec.encode()) / SLOWEST_BYTES_PER_S
        frame = LinkFrame(
            version=body.since,
            session=self.session,
            view=self.view,
            number=number,
            received=self.deliveries.take_received(),
            committed=len(prefix),
            committed_digest=prefix.digest,
            stamp=stamp,
            echo=echo,
            held_us=held_us,
            body=body,
        )
        return Send("peer", frame, self.name)

    def post(self, body: Numbered, prefix: Prefix, now_s: float) -> Send:
        """Send `body`, and keep it until the peer has committed its step."""
        return self.send(body, prefix, now_s, self.deliveries.add(body, now_s))

    def post_verdict(self, verdict: Verdict, prefix: Prefix, now_s: float, *, may_wait: bool) -> list[Send]:
        """Send a verdict as `post` does, with those that wait. may_wait: until the link has room, as `release` finds
        it."""
        self.window.add_waiting(verdict, now_s)
        return self.release(prefix, now_s) if may_wait else self._post_waiting(prefix, now_s)

    def post_vote(self, vote: Vote, prefix: Prefix, now_s: float, *, may_wait: bool) -> list[Send]:
        """Send a vote as `post` does. may_wait: a proposal waits until the link has room, and replaces waiting ones
        that begin where it begins or later."""
        if not may_wait:
            return [self.post(vote, prefix, now_s)]
        self.window.add_proposal(vote)
        return self._post_proposals(prefix, now_s)

    def release(self, prefix: Prefix, now_s: float) -> list[Send]:
        """Release what waits, if the link has room; verdicts also if it is silent so long that frames may be lost."""
        is_due = self.window.is_release_due(now_s, self.round_trips.timeout_s)
        sends = self._post_waiting(prefix, now_s) if is_due else []
        return sends + self._post_proposals(prefix, now_s)

    def _post_proposals(self, prefix: Prefix, now_s: float) -> list[Send]:
        sends = []
        while (proposal := self.window.take_proposal(prefix)) is not None:
            sends.append(self.post(proposal, prefix, now_s))
        return sends

    def _post_waiting(self, prefix: Prefix, now_s: float) -> list[Send]:
        return [self.post(self.window.take_waiting(), prefix, now_s)]

    def resend(self, bodies: list[LinkBody], prefix: Prefix, now_s: float) -> list[Send]:
        """Bodies without a number once more, in the current view."""
        self.deliveries.num_resent += len(bodies)
        return [self.send(body, prefix, now_s) for body in bodies]

    def resend_missing(self, prefix: Prefix, now_s: float, timeout_s: float = 0.0) -> list[Send]:
        """Whatever the peer has not received, if it was last sent so long ago."""
        overdue = self.deliveries.take_overdue(now_s, timeout_s)
        self.deliveries.num_resent += len(overdue)
        return [self.send(body, prefix, now_s, number) for number, body in overdue.items()]

    def resend_all(self, unacknowledged: list[LinkBody], prefix: Prefix, now_s: float) -> list[Send]:
        """There is a new connection to the peer: whatever it has not acknowledged, at least a sign of life."""
        due = self.resend(unacknowledged, prefix, now_s) + self.resend_missing(prefix, now_s)
        return due or [self.send(Heartbeat(), prefix, now_s)]

    def probe(self, prefix: Prefix, now_s: float) -> list[Send]:
        """Two probes, an empty one and a longer one: the difference of their round trips gives the bandwidth."""
        sends = []
        for padding_bytes in (0, PROBE_BYTES):
            sends.append(self.send(Probe(is_reply=False, padding=bytes(padding_bytes)), prefix, now_s))
            self.round_trips.expect_probe(padding_bytes)
        return sends

    def answer_probe(self, body: LinkBody, prefix: Prefix, now_s: float) -> list[Send]:
        """Answer a probe at once; send the own ones on the first frame of the peer, while both still prefill."""
        sends = []
        if isinstance(body, Probe) and not body.is_reply:
            sends.append(self.send(Probe(is_reply=True, padding=b""), prefix, now_s))
        if self.round_trips.measures:
            self.round_trips.measures = False
            sends += self.probe(prefix, now_s)
        return sends

    def due(self, prefix: Prefix, now_s: float, unacknowledged: list[LinkBody]) -> list[Send]:
        """Resends where their time has come; else a heartbeat if idle, or if receipts have waited long enough.

        unacknowledged: bodies without a number that are repeated until the peer shows that it has them.
        """
        sends = self.release(prefix, now_s)
        is_opening = bool(unacknowledged) and not self.has_spoken
        if not unacknowledged:
            self._repeats.restart(now_s)  # the wait starts with the next one
        elif self._repeats.take_due(now_s, self.round_trips.timeout_s):
            sends += self.resend(unacknowledged, prefix, now_s)
        sends += self.resend_missing(prefix, now_s, self.round_trips.timeout_s)
        rtt_s = self.round_trips.latest_s
        is_idle = (
            now_s - self.round_trips.sent_s >= max(HEARTBEAT_S, HEARTBEAT_RTTS * rtt_s) and not is_opening
        )
        if sends or not (is_idle or self.deliveries.is_acknowledgement_due(now_s, rtt_s)):
            return sends
        if self.window.has_waiting:
            return self._post_waiting(prefix, now_s)
        return [self.send(Heartbeat(), prefix, now_s)]

    # ---- receiving ---------------------------------------------------------------------------------------------

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in the header of any frame; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived.
        """
        self._repeats.extra_s = 0.0
        self.seen_view = max(self.seen_view, frame.view)
        self.liveness.hear(now_s)
        rtt_s = self.round_trips.receive(frame, now_s, waited_s)
        self.window.receive(frame.echo, rtt_s)
        return rtt_s

    def acknowledge(self, frame: LinkFrame, committed: int, now_s: float) -> None:
        """Take in what a frame of this view acknowledges. committed: steps that both parties have committed alike."""
        self.deliveries.acknowledge(frame.received, now_s)
        if committed > self.num_committed:
            self.num_committed = committed
            self.deliveries.drop_committed(committed)
            self._repeats.restart(now_s)

    def start_view(self, view: int, num_committed: int, now_s: float) -> None:
        """A Resync was sent or adopted: earlier receipts and acknowledgements no longer count."""
        self.view = view
        self.num_committed = num_committed
        self.deliveries.clear()
        self.claims.clear()
        self.window.clear_waiting()
        self._repeats.restart(now_s)

    # ---- silence -----------------------------------------------------------------------------------------------

    def silence_s(self, now_s: float) -> float:
        """Seconds since the last frame of the peer, without stalls of this side."""
        return self.liveness.silence_s(now_s)

    def loss_limit_s(self, margin_s: float) -> float:
        """Silence after which the peer counts as lost: max(4 RTT, 0.5 s) + margin; one that has not spoken yet has as
        much longer as the opening takes at 10 kbit/s."""
        return max(4 * self.round_trips.latest_s, MIN_TIMEOUT_S) + margin_s + self._repeats.extra_s

    def find_problem(
        self, margin_s: float, stall_s: float, now_s: float, *, has_others_behind: bool = False
    ) -> Problem | None:
        """Why it counts as lost, if so. margin_s: of silence beyond the limit. stall_s, has_others_behind: of
        `Liveness.stall_limit_s`. Over a slow link a wait may end before the limit of silence does: a peer that was not
        heard in the later half of it is silent, too."""
        silence_s, waited_s = self.silence_s(now_s), self.liveness.waited_s(now_s)
        is_stalled = waited_s > self.liveness.stall_limit_s(stall_s, has_others_behind=has_others_behind)
        if silence_s > self.loss_limit_s(margin_s) or (is_stalled and silence_s > waited_s / 2):
            return Problem(_SILENT.format(at_start(self.name), silence_s), is_stall=False)
        if is_stalled:
            return Problem(_STALLED.format(at_start(self.name), waited_s), is_stall=True)
        return None


def _last_step(body: Vote | Verdict | ListRequest) -> int:
    """The last step that the body has to do with."""
    match body:
        case Vote():
            return body.step + max(1, body.num_prefixes) - 1
        case Verdict():
            return body.step + len(body.tokens) - 1
        case _:
            return body.step


def _is_shorter(body: Numbered, longer: Vote) -> bool:
    return isinstance(body, Vote) and body.digest == longer.digest and len(body.payloads) == 1


def _is_dead(body: Numbered, live: Container[bytes], step: int) -> bool:
    if isinstance(body, ListRequest):
        return body.step < step
    return isinstance(body, Vote) and body.step >= step and body.digest not in live
