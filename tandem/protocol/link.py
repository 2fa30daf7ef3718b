"""One session's half of the link: frame headers, round trips, acknowledgement, resend and silence.

Knows nothing of pairing or verdicts: it wraps bodies, keeps what the peer has not acknowledged, and says
what is due. Time comes in as an argument.
"""

from __future__ import annotations

from math import inf, nan

from tandem.protocol.messages import Heartbeat, LinkBody, LinkFrame, Probe, Proposal, Verdict
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix

HEARTBEAT_S = 0.25
"""A side that has sent nothing for this long sends a heartbeat."""
MIN_RESEND_S = 0.5
MAX_RESEND_S = 4.0
PROBE_BYTES = 1200
"""Padding of the longer of two probes: one packet, since bandwidth matters only where a packet's time can be seen."""
_CLOCK_MASK = 0xFFFFFFFF  # timestamps are microseconds modulo 2^32
_NEVER = _CLOCK_MASK  # `held_us` before anything was received


def _clock_us(now_s: float) -> int:
    return int(now_s * 1e6) & _CLOCK_MASK


class Link:
    """What one side knows of the other within a session."""

    def __init__(self, session: int, now_s: float) -> None:
        self.session = session
        self.view = 0
        self.peer_generation = 0
        self.peer_committed = 0  # steps that the peer is known to have committed
        self.rtt_s = float("nan")  # last sample
        self.heard_s = now_s
        self.num_resent_frames = 0
        # By digest: a draft of another branch that arrives late must not take the place of one of the same step.
        self.kept_drafts: dict[bytes, Proposal] = {}  # the peer may still need them
        self.kept_verdicts: dict[int, Verdict] = {}  # by step
        self._peer_sent_us: int | None = None
        self._probes: dict[int, int] = {}  # by `sent_us`: bytes of padding
        self._probed_s: dict[int, float] = {}  # by bytes of padding: the round trip
        self._received_s = now_s
        self._sent_s = now_s
        self._resend_s = now_s + MIN_RESEND_S
        self._resend_wait_s = MIN_RESEND_S

    def send(self, body: LinkBody, prefix: Prefix, now_s: float) -> Send:
        """`body` under a header that says where this side stands."""
        self._sent_s = now_s
        return Send("peer", self._frame(body, prefix, now_s))

    def keep(self, body: Proposal | Verdict) -> None:
        """Hold `body` until the peer has committed its step."""
        if isinstance(body, Proposal):
            self.kept_drafts[body.digest] = body
        else:
            self.kept_verdicts[body.step] = body

    def drop_stale_drafts(self, prefix: Prefix) -> None:
        """Own drafts of the next step that were conditioned on another prefix are needed by nobody.

        Later ones stay, also after a rejection: a decoder that was started anew may have drawn the target where the
        draft that was sent is another token, and have drafted on from it.
        """
        step, digest = len(prefix), prefix.digest
        self.kept_drafts = {
            key: draft for key, draft in self.kept_drafts.items() if draft.step != step or key == digest
        }

    def drop_drafts_before(self, step: int) -> None:
        """The peer learns those steps by other means (Resync)."""
        self.kept_drafts = {key: draft for key, draft in self.kept_drafts.items() if draft.step >= step}

    def hear(self, frame: LinkFrame, now_s: float) -> float:
        """Take the header of a received frame in; returns a round-trip time in seconds, or nan."""
        self.heard_s = now_s
        self._peer_sent_us, self._received_s = frame.sent_us, now_s
        self.peer_generation = max(self.peer_generation, frame.view)
        if frame.held_us == _NEVER:
            return float("nan")
        elapsed_us = (_clock_us(now_s) - frame.echo_us) & _CLOCK_MASK
        rtt_us = elapsed_us - frame.held_us
        if not 0 <= rtt_us < 1 << 31:  # a frame that was overtaken, or a peer whose clock jumped
            return float("nan")
        rtt_s = rtt_us / 1e6
        padding_bytes = self._probes.pop(frame.echo_us, 0)
        self._probed_s[padding_bytes] = rtt_s
        if padding_bytes:  # its own length is in it
            return nan
        self.rtt_s = rtt_s
        return rtt_s

    def ignore_echo(self) -> None:
        """The last frame lay waiting for the query to be opened: its age is no part of a round trip."""
        self._peer_sent_us = None

    def probe(self, prefix: Prefix, now_s: float) -> list[Send]:
        """Two probes, an empty one and a longer one: what they take apart is the link's bandwidth."""
        sends = []
        for number, padding_bytes in enumerate((0, PROBE_BYTES)):
            sent_s = now_s + number * 2e-6  # told apart by their time, which is cut to microseconds
            sends.append(self.send(Probe(is_reply=False, padding=bytes(padding_bytes)), prefix, sent_s))
            self._probes[_clock_us(sent_s)] = padding_bytes
        return sends

    def bytes_per_s(self) -> float:
        """Bandwidth towards the peer (B in DRAGON 5.2): once, when both probes have been answered; else nan.

        inf: the longer probe took no longer.
        """
        if not {0, PROBE_BYTES} <= self._probed_s.keys():
            return nan
        longer_s = self._probed_s.pop(PROBE_BYTES) - self._probed_s[0]
        return PROBE_BYTES / longer_s if longer_s > 0 else inf

    def start_view(self, view: int, peer_committed: int, now_s: float) -> None:
        """A Resync was sent or adopted: earlier acknowledgements count no more."""
        self.view = view
        self.peer_committed = peer_committed
        self.kept_verdicts.clear()
        self._postpone_resend(now_s, MIN_RESEND_S)

    def silence_s(self, now_s: float) -> float:
        """How long nothing was heard."""
        return now_s - self.heard_s

    def loss_limit_s(self, margin_s: float) -> float:
        """Silence after which the peer counts as lost: max(4 RTT, 0.5 s) + margin."""
        rtt_s = 0.0 if self.rtt_s != self.rtt_s else self.rtt_s
        return max(4 * rtt_s, MIN_RESEND_S) + margin_s

    def due(self, prefix: Prefix, now_s: float, unacknowledged: list[LinkBody]) -> list[Send]:
        """Resends (kept frames and `unacknowledged`) where their time has come, else a heartbeat if idle."""
        bodies = [*unacknowledged, *self.kept_verdicts.values(), *self.kept_drafts.values()]
        if not bodies:
            self._postpone_resend(now_s, MIN_RESEND_S)  # the wait begins with the first body to come
        elif now_s >= self._resend_s:
            self._postpone_resend(now_s, min(2 * self._resend_wait_s, MAX_RESEND_S))
            return self.resend(bodies, prefix, now_s)
        if now_s - self._sent_s >= HEARTBEAT_S:
            return [self.send(Heartbeat(), prefix, now_s)]
        return []

    def resend(self, bodies: list[LinkBody], prefix: Prefix, now_s: float) -> list[Send]:
        """`bodies` once more, in the current generation."""
        self.num_resent_frames += len(bodies)
        return [self.send(body, prefix, now_s) for body in bodies]

    def acknowledge(self, committed: int, now_s: float) -> None:
        """The peer has committed so many tokens, and they are this side's: what belongs to them need not be kept."""
        if committed <= self.peer_committed:
            return
        self.peer_committed = committed
        self.drop_drafts_before(committed)
        self.kept_verdicts = {step: kept for step, kept in self.kept_verdicts.items() if step >= committed}
        self._postpone_resend(now_s, MIN_RESEND_S)

    def _postpone_resend(self, now_s: float, wait_s: float) -> None:
        rtt_s = 0.0 if self.rtt_s != self.rtt_s else self.rtt_s
        self._resend_wait_s = max(wait_s, min(2 * rtt_s, MAX_RESEND_S))
        self._resend_s = now_s + self._resend_wait_s

    def _frame(self, body: LinkBody, prefix: Prefix, now_s: float) -> LinkFrame:
        held_us = (
            _NEVER if self._peer_sent_us is None else min(int((now_s - self._received_s) * 1e6), _NEVER - 1)
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
