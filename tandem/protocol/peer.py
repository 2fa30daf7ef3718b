"""All that one side of a session knows of one peer: frames on their way, what is not acknowledged, silence, and what
the peer has said of its own tokens.

As etcd-raft's `Progress`: one object per peer. Time and the committed prefix come in as arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeAlias

from tandem.messages import Heartbeat, LinkBody, LinkFrame, ListRequest, Open, Probe, Sources, Verdict, Vote
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol.ballots import is_open
from tandem.protocol.link import MAX_TIMEOUT_S, MIN_TIMEOUT_S, PROBE_BYTES, Backoff, Liveness, RoundTrips
from tandem.protocol.log import MAX_AHEAD, MAX_VERDICT_TOKENS, Prefix, join_verdicts
from tandem.protocol.routes import Send

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
MAX_WAITING_TOKENS = MAX_VERDICT_TOKENS - MAX_PROPOSAL - 1
"""Waiting verdicts have at most so many, so that one more fits into the same frame."""
MAX_ANSWERED = 64
"""Restarts of a peer that are remembered; one before these would be answered again."""

Numbered: TypeAlias = Vote | Verdict | Sources | ListRequest
"""Bodies whose receipt is acknowledged."""


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

    def add(self, body: Numbered, now_s: float) -> int:
        """Keep a body that is sent now; returns its number."""
        self._last_number += 1
        self.sent[self._last_number] = Sent(body, now_s)
        return self._last_number

    def supersede(self, longer: Vote) -> None:
        """Forget a shorter list of the same vote."""
        self._keep(
            lambda body: not isinstance(body, Vote) or body.digest != longer.digest or len(body.payloads) != 1
        )

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
        self._keep(lambda body: isinstance(body, Sources) or _last_step(body) >= step)

    def drop_dead(self, live: Container[bytes], step: int) -> None:
        """Drop votes from `step` on whose digest is not among the `live` ones, and requests for earlier steps."""
        self._keep(
            lambda body: (
                not (isinstance(body, Vote) and body.step >= step and body.digest not in live)
                and not (isinstance(body, ListRequest) and body.step < step)
            )
        )

    def clear(self) -> None:
        """A new view: whatever the peer needs in it is added again, and older numbers mean nothing in it."""
        self.sent.clear()
        self.received.clear()

    def _keep(self, is_needed: Callable[[Numbered], bool]) -> None:
        self.sent = {number: sent for number, sent in self.sent.items() if is_needed(sent.body)}


def _last_step(body: Vote | Verdict | ListRequest) -> int:
    match body:
        case Vote():
            return body.step + max(1, body.num_prefixes) - 1
        case Verdict():
            return body.step + len(body.tokens) - 1
        case _:
            return body.step


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
        self.measures = measures
        self.liveness = Liveness(now_s, name)
        self.round_trips = RoundTrips(now_s)
        self.deliveries = Deliveries()
        self.claims = Claims()
        self._verdicts: list[Verdict] = []  # wait in the order of their steps; together they fit one frame
        self._waiting_s = 0.0  # since when the first of them has waited
        self._proposals: list[Vote] = []  # wait, in that order, too
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
        is_probe = isinstance(body, Probe) and bool(body.padding)
        stamp, echo, held_us = self.round_trips.header(now_s, is_probe=is_probe)
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
        if not self._verdicts:
            self._waiting_s = now_s
        self._verdicts.append(verdict)
        return self.release(prefix, now_s) if may_wait else self._post_verdicts(prefix, now_s)

    def post_vote(self, vote: Vote, prefix: Prefix, now_s: float, *, may_wait: bool) -> list[Send]:
        """Send a vote as `post` does. may_wait: a proposal waits until the link has room, and replaces waiting ones
        that begin where it begins or later."""
        if not may_wait:
            return [self.post(vote, prefix, now_s)]
        self._proposals = [*(kept for kept in self._proposals if kept.step < vote.step), vote]
        return self._post_proposals(prefix, now_s)

    def release(self, prefix: Prefix, now_s: float) -> list[Send]:
        """Release what waits, if the link has room; verdicts also if it is silent so long that frames may be lost."""
        num_tokens = sum(len(verdict.tokens) for verdict in self._verdicts)
        has_waited = now_s - self._waiting_s >= self.round_trips.timeout_s
        may_go = not self.round_trips.is_full or num_tokens > MAX_WAITING_TOKENS or has_waited
        sends = self._post_verdicts(prefix, now_s) if self._verdicts and may_go else []
        return sends + self._post_proposals(prefix, now_s)

    def _post_verdicts(self, prefix: Prefix, now_s: float) -> list[Send]:
        verdict, self._verdicts = join_verdicts(self._verdicts), []
        return [self.post(verdict, prefix, now_s)]

    def _post_proposals(self, prefix: Prefix, now_s: float) -> list[Send]:
        """Those that no token behind `prefix` can accept are forgotten."""
        sends = []
        self._proposals = [kept for kept in self._proposals if is_open(kept, prefix, len(prefix))]
        while self._proposals and not self.round_trips.is_full:
            sends.append(self.post(self._proposals.pop(0), prefix, now_s))
        return sends

    def clear_proposals(self) -> None:
        """Forget the proposals that wait: nobody will accept them."""
        self._proposals.clear()

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
        probes = [Probe(is_reply=False, padding=bytes(num_bytes)) for num_bytes in (0, PROBE_BYTES)]
        return [self.send(probe, prefix, now_s) for probe in probes]

    def answer_probe(self, body: LinkBody, prefix: Prefix, now_s: float) -> list[Send]:
        """Answer a probe at once; send the own ones on the first frame of the peer, while both still prefill."""
        sends = []
        if isinstance(body, Probe) and not body.is_reply:
            sends.append(self.send(Probe(is_reply=True, padding=b""), prefix, now_s))
        if self.measures:
            self.measures = False
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
        if self._verdicts:
            return self._post_verdicts(prefix, now_s)
        return [self.send(Heartbeat(), prefix, now_s)]

    # ---- receiving ---------------------------------------------------------------------------------------------

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in the header of any frame; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived.
        """
        self._repeats.extra_s = 0.0
        self.seen_view = max(self.seen_view, frame.view)
        self.liveness.hear(now_s)
        return self.round_trips.receive(frame, now_s, waited_s)

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
        self._verdicts.clear()
        self._proposals.clear()
        self._repeats.restart(now_s)

    def silence_limit_s(self, margin_s: float) -> float:
        """Silence after which the peer counts as lost: max(4 RTT, 0.5 s) + margin; one that has not spoken yet has as
        much longer as the opening takes at 10 kbit/s."""
        return max(4 * self.round_trips.latest_s, MIN_TIMEOUT_S) + margin_s + self._repeats.extra_s
