"""One session's half of the link to one peer: frame headers, receipts, resend and silence.

It wraps bodies, keeps what the peer has not committed, and says what is due. Time comes in as an argument.
"""

from __future__ import annotations

from tandem.messages import Heartbeat, LinkBody, LinkFrame, Open, Probe, Proposal, Verdict
from tandem.protocol.backlog import Backlog, Numbered, Receipts
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.repeats import Repeats
from tandem.protocol.round_trips import MIN_TIMEOUT_S, PROBE_BYTES, RoundTrips
from tandem.protocol.send_window import SendWindow

HEARTBEAT_S = 0.25
"""A party that has sent nothing for this long, and for HEARTBEAT_RTTS round trips, sends a heartbeat."""
HEARTBEAT_RTTS = 1.5
"""Well below the 4 round trips of silence after which a peer counts as lost. Heartbeats four times a second would fill
half of a link of 10 kbit/s, whose round trip is long because it is slow."""


class PeerLink:
    """What one party knows of one peer within a session.

    Invariants: a proposal, vote or verdict that was posted is resent until the peer acknowledges its receipt, and kept
    until the peer has committed its step, or no branch can need it any more. Verdicts go out in step order; those that
    wait for a full link go out together. Proposals that wait for one go out in order, but for those that nothing can
    accept any more. Receipts and acknowledgements hold within one view.
    """

    def __init__(self, session: int, now_s: float, peer: str = "", *, measures: bool = False) -> None:
        """measures: probe round trip and bandwidth when the first frame of the peer arrives."""
        self.session = session
        self.peer = peer
        self.view = 0
        self.peer_view = -1  # below 0: no frame of the peer has arrived yet
        self.peer_committed = 0  # steps that the peer is known to have committed
        self.received_s = now_s  # when the last frame arrived
        self.num_resent_frames = 0
        self.round_trips = RoundTrips(now_s, measures=measures)
        self.backlog = Backlog()
        self.receipts = Receipts()
        self.window = SendWindow()
        self._repeats = Repeats(now_s)

    @property
    def has_heard(self) -> bool:
        """Whether any frame of the peer has arrived in this session."""
        return self.peer_view >= 0

    # ---- sending -----------------------------------------------------------------------------------------------

    def send(self, body: LinkBody, prefix: Prefix, now_s: float, number: int = 0) -> Send:
        """`body` under a header that says what this party has received and committed."""
        stamp, echo, held_us = self.round_trips.header(now_s)
        self.window.send(stamp)
        if isinstance(body, Open):
            self._repeats.note_opening(len(body.spec.encode()))
        frame = LinkFrame(
            session=self.session,
            view=self.view,
            number=number,
            received=self.receipts.take(),
            committed=len(prefix),
            committed_digest=prefix.digest,
            stamp=stamp,
            echo=echo,
            held_us=held_us,
            body=body,
        )
        return Send("peer", frame, self.peer)

    def post(self, body: Numbered, prefix: Prefix, now_s: float) -> Send:
        """Send `body`, and keep it until the peer has committed its step."""
        return self.send(body, prefix, now_s, self.backlog.add(body, now_s))

    def post_verdict(self, verdict: Verdict, prefix: Prefix, now_s: float, *, may_wait: bool) -> list[Send]:
        """As `post`, with the verdicts that wait. may_wait: until the link has room, as `release` finds it."""
        self.window.add_waiting(verdict, now_s)
        return self.release(prefix, now_s) if may_wait else self._post_waiting(prefix, now_s)

    def post_proposal(
        self, proposal: Proposal, prefix: Prefix, now_s: float, *, may_wait: bool
    ) -> list[Send]:
        """As `post`. may_wait: until the link has room; one that begins where another began that waits, or before it,
        takes its place."""
        if not may_wait:
            return [self.post(proposal, prefix, now_s)]
        self.window.add_proposal(proposal)
        return self._post_proposals(prefix, now_s)

    def release(self, prefix: Prefix, now_s: float) -> list[Send]:
        """What waits, if the link has room; verdicts also if it is silent for so long that frames may be lost."""
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
        self.num_resent_frames += len(bodies)
        return [self.send(body, prefix, now_s) for body in bodies]

    def resend_missing(self, prefix: Prefix, now_s: float, timeout_s: float = 0.0) -> list[Send]:
        """Whatever the peer has not received, if it was last sent so long ago."""
        overdue = self.backlog.take_overdue(now_s, timeout_s)
        self.num_resent_frames += len(overdue)
        return [self.send(parcel.body, prefix, now_s, number) for number, parcel in overdue.items()]

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
        is_opening = bool(unacknowledged) and not self.has_heard
        if not unacknowledged:
            self._repeats.restart(now_s)  # the wait starts with the next one
        elif self._repeats.take_due(now_s, self.round_trips.timeout_s, is_opening=is_opening):
            sends += self.resend(unacknowledged, prefix, now_s)
        sends += self.resend_missing(prefix, now_s, self.round_trips.timeout_s)
        known_s = self.round_trips.known_s
        is_idle = (
            now_s - self.round_trips.sent_s >= max(HEARTBEAT_S, HEARTBEAT_RTTS * known_s) and not is_opening
        )
        if sends or not (is_idle or self.receipts.is_due(now_s, known_s)):
            return sends
        if self.window.has_waiting:
            return self._post_waiting(prefix, now_s)
        return [self.send(Heartbeat(), prefix, now_s)]

    # ---- receiving ---------------------------------------------------------------------------------------------

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in the header of any frame; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived.
        """
        self.received_s = now_s
        self.peer_view = max(self.peer_view, frame.view)
        rtt_s = self.round_trips.receive(frame, now_s, waited_s)
        self.window.receive(frame.echo, rtt_s)
        return rtt_s

    def acknowledge(self, frame: LinkFrame, committed: int, now_s: float) -> None:
        """Take in what a frame of this view acknowledges. committed: steps that both parties have committed alike."""
        self.backlog.receive_receipts(frame.received, now_s)
        if committed > self.peer_committed:
            self.peer_committed = committed
            self.backlog.drop_committed(committed)
            self._repeats.restart(now_s)

    def start_view(self, view: int, peer_committed: int, now_s: float) -> None:
        """A Resync was sent or adopted: earlier receipts and acknowledgements no longer count."""
        self.view = view
        self.peer_committed = peer_committed
        self.backlog.clear()
        self.receipts.clear()
        self.window.clear_waiting()
        self._repeats.restart(now_s)

    # ---- silence -----------------------------------------------------------------------------------------------

    def silence_s(self, now_s: float) -> float:
        """Seconds since the last frame of the peer."""
        return now_s - self.received_s

    def loss_limit_s(self, margin_s: float) -> float:
        """Silence after which the peer counts as lost: max(4 RTT, 0.5 s) + margin; one that was never heard has as much
        longer as the opening takes at 10 kbit/s."""
        opening_s = 0.0 if self.has_heard else self._repeats.opening_s
        return max(4 * self.round_trips.known_s, MIN_TIMEOUT_S) + margin_s + opening_s
