"""One session's half of the link: frame headers, round trips, acknowledgement, resend and silence.

It wraps bodies, keeps what the peer has not acknowledged, and says what is due. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan, nan

from tandem.protocol.messages import Heartbeat, LinkBody, LinkFrame, Probe, Proposal, Verdict
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix

HEARTBEAT_S = 0.25
"""A party that has sent nothing for this long sends a heartbeat."""
MIN_RESEND_S = 0.5
MAX_RESEND_S = 4.0
PROBE_BYTES = 1200
"""Padding of the longer of two probes: one packet, since bandwidth matters only where a packet's time can be seen."""
_CLOCK_MASK = 0xFFFFFFFF  # timestamps are microseconds modulo 2^32
_NEVER = _CLOCK_MASK  # `held_us` before anything was received


def _clock_us(now_s: float) -> int:
    return int(now_s * 1e6) & _CLOCK_MASK


class Link:
    """What one party knows of the other within a session.

    Invariants: a proposal or verdict is kept until the peer has committed its step, or no branch can need it any more.
    An acknowledgement holds within one view.
    """

    def __init__(self, session: int, now_s: float) -> None:
        self.session = session
        self.view = 0
        self.peer_view = 0
        self.peer_committed = 0  # steps that the peer is known to have committed
        self.rtt_s = nan  # last sample
        self.received_s = now_s  # when the last frame arrived
        self.num_resent_frames = 0
        # By digest: a late proposal of another branch must not replace one of the same step.
        self.kept_proposals: dict[bytes, Proposal] = {}  # the peer may still need them
        self.kept_verdicts: dict[int, Verdict] = {}  # by step
        self._peer_sent_us: int | None = None
        self._arrived_s = now_s  # of the frame that is echoed
        self._probes: dict[int, int] = {}  # by `sent_us`: bytes of padding
        self._probed_s: dict[int, float] = {}  # by bytes of padding: the round trip
        self._sent_s = now_s
        self._resend_s = now_s + MIN_RESEND_S
        self._resend_wait_s = MIN_RESEND_S

    def send(self, body: LinkBody, prefix: Prefix, now_s: float) -> Send:
        """`body` under a header that says what this party has committed."""
        self._sent_s = now_s
        return Send("peer", self._frame(body, prefix, now_s))

    def keep(self, body: Proposal | Verdict) -> None:
        """Hold `body` until the peer has committed its step."""
        if isinstance(body, Proposal):
            self.kept_proposals[body.digest] = body
        else:
            self.kept_verdicts[body.step] = body

    def drop_stale_proposals(self, prefix: Prefix) -> None:
        """Drop own proposals for the next step that were conditioned on another prefix: nobody needs them.

        Later ones stay, even after a rejection: a restarted decoder may have drawn the target where the proposal that
        was sent is another token, and have drafted on from it.
        """
        step, digest = len(prefix), prefix.digest
        self.kept_proposals = {
            key: kept for key, kept in self.kept_proposals.items() if kept.step != step or key == digest
        }

    def drop_proposals_before(self, step: int) -> None:
        """Drop own proposals for steps before `step`: the peer has committed them, or learns them by a Resync."""
        self.kept_proposals = {key: kept for key, kept in self.kept_proposals.items() if kept.step >= step}

    def keep_held(self, own: Mapping[bytes, Proposal], prefix: Prefix) -> None:
        """After a Resync keep every own proposal that can still count: the peer may need any that is held here.

        It may be put to the vote here before the decoder emits it again. own: those held, by digest.
        """
        step, digest = len(prefix), prefix.digest
        self.kept_proposals = {
            key: held
            for key, held in own.items()
            if held.step > step or (held.step == step and key == digest)
        }

    @property
    def kept(self) -> list[LinkBody]:
        """What the peer has not acknowledged: verdicts, then proposals."""
        return [*self.kept_verdicts.values(), *self.kept_proposals.values()]

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in the header of a received frame; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived. The echo says so, or the peer would take the wait for a part of the
        round trip.
        """
        self._peer_sent_us, self._arrived_s, self.received_s = frame.sent_us, now_s - waited_s, now_s
        self.peer_view = max(self.peer_view, frame.view)
        if frame.held_us == _NEVER:
            return nan
        elapsed_us = (_clock_us(now_s) - frame.echo_us) & _CLOCK_MASK
        rtt_us = elapsed_us - frame.held_us
        if not 0 <= rtt_us < 1 << 31:  # a frame that was overtaken, or a peer whose clock jumped
            return nan
        rtt_s = rtt_us / 1e6
        padding_bytes = self._probes.pop(frame.echo_us, 0)
        self._probed_s[padding_bytes] = rtt_s
        if padding_bytes:  # the time to send it is included
            return nan
        self.rtt_s = rtt_s
        return rtt_s

    def probe(self, prefix: Prefix, now_s: float) -> list[Send]:
        """Two probes, an empty one and a longer one: the difference of their round trips gives the bandwidth."""
        sends = []
        for number, padding_bytes in enumerate((0, PROBE_BYTES)):
            sent_s = now_s + number * 2e-6  # identified by their time, in whole microseconds
            sends.append(self.send(Probe(is_reply=False, padding=bytes(padding_bytes)), prefix, sent_s))
            self._probes[_clock_us(sent_s)] = padding_bytes
        return sends

    def take_bytes_per_s(self) -> float:
        """Bandwidth towards the peer in bytes per second (B in DRAGON 5.2), once both probes are answered; else nan.

        inf: the longer probe took no longer.
        """
        if not {0, PROBE_BYTES} <= self._probed_s.keys():
            return nan
        longer_s = self._probed_s.pop(PROBE_BYTES) - self._probed_s[0]
        return PROBE_BYTES / longer_s if longer_s > 0 else inf

    def start_view(self, view: int, peer_committed: int, now_s: float) -> None:
        """A Resync was sent or adopted: earlier acknowledgements no longer count."""
        self.view = view
        self.peer_committed = peer_committed
        self.kept_verdicts.clear()
        self._postpone_resend(now_s, MIN_RESEND_S)

    def silence_s(self, now_s: float) -> float:
        """Seconds since the last frame of the peer."""
        return now_s - self.received_s

    def loss_limit_s(self, margin_s: float) -> float:
        """Silence after which the peer counts as lost: max(4 RTT, 0.5 s) + margin."""
        rtt_s = 0.0 if isnan(self.rtt_s) else self.rtt_s
        return max(4 * rtt_s, MIN_RESEND_S) + margin_s

    def due(self, prefix: Prefix, now_s: float, unacknowledged: list[LinkBody]) -> list[Send]:
        """Resends (kept frames and `unacknowledged`) where their time has come, else a heartbeat if idle."""
        bodies = [*unacknowledged, *self.kept]
        if not bodies:
            self._postpone_resend(now_s, MIN_RESEND_S)  # the wait starts with the next body to keep
        elif now_s >= self._resend_s:
            self._postpone_resend(now_s, min(2 * self._resend_wait_s, MAX_RESEND_S))
            return self.resend(bodies, prefix, now_s)
        if now_s - self._sent_s >= HEARTBEAT_S:
            return [self.send(Heartbeat(), prefix, now_s)]
        return []

    def resend(self, bodies: list[LinkBody], prefix: Prefix, now_s: float) -> list[Send]:
        """`bodies` once more, in the current view."""
        self.num_resent_frames += len(bodies)
        return [self.send(body, prefix, now_s) for body in bodies]

    def acknowledge(self, committed: int, now_s: float) -> None:
        """The peer has committed this many tokens, the same as here: drop what was kept for them."""
        if committed <= self.peer_committed:
            return
        self.peer_committed = committed
        self.drop_proposals_before(committed)
        self.kept_verdicts = {step: kept for step, kept in self.kept_verdicts.items() if step >= committed}
        self._postpone_resend(now_s, MIN_RESEND_S)

    def _postpone_resend(self, now_s: float, wait_s: float) -> None:
        rtt_s = 0.0 if isnan(self.rtt_s) else self.rtt_s
        self._resend_wait_s = max(wait_s, min(2 * rtt_s, MAX_RESEND_S))
        self._resend_s = now_s + self._resend_wait_s

    def _frame(self, body: LinkBody, prefix: Prefix, now_s: float) -> LinkFrame:
        held_us = (
            _NEVER if self._peer_sent_us is None else min(int((now_s - self._arrived_s) * 1e6), _NEVER - 1)
        )
        return LinkFrame(
            session=self.session,
            view=self.view,
            committed=len(prefix),
            committed_digest=prefix.digest,
            sent_us=_clock_us(now_s),
            echo_us=self._peer_sent_us or 0,
            held_us=held_us,
            body=body,
        )
