"""How a session ends, and what this party does while its peer is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

from tandem.events import DoneEvent, PeerEvent, SessionStatistics, StopReason
from tandem.protocol.ballots import BallotBox
from tandem.protocol.link import PeerLink
from tandem.protocol.log import CommittedLog
from tandem.protocol.messages import Cancel, Done, End, LinkBody, LinkFrame
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.report import Reporter
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party

StopCheck = Callable[[Sequence[int]], StopReason | None]
"""Why an answer of these tokens is complete, or None: end-of-sequence, stop string, length."""

LINGER_S = 10.0
"""Silence of the cloud after which a finished device no longer waits for its Done."""
ABANDONED_S = 60.0
"""Silence of the device after which the cloud frees a session, finished or not: the device may still need it.
Also the longest that a finished device waits for a cloud that is alive but does not finish."""

_CANCELLED = "The query was cancelled."
_DEVICE_FAILED = "The device could not go on."
_FINISHED_ALONE = "The device finished alone."
LISTENERS: tuple[ActorKind, ...] = ("decoder", "aggregator", "profiler", "scheduler")
_SOLO_LISTENERS: tuple[ActorKind, ...] = ("decoder", "aggregator")  # nobody to place or to wait for


class Lifecycle:
    """Running, finished, over; and with or without the peer.

    Invariants: `is_over` is final, and nothing is owed to anybody from then on. Before that `reason` says why the
    answer is complete; only a Resync can take it back. Only the device ever loses its peer. A solo session sends
    nothing across the link.
    """

    def __init__(
        self,
        spec: SessionSpec,
        party: Party,
        log: CommittedLog,
        ballots: BallotBox,
        link: PeerLink,
        reporter: Reporter,
    ) -> None:
        self.peer_lost = False
        self.reason: StopReason | None = None
        self.error: str | None = None
        self.is_over = False
        self._spec, self._party = spec, party
        self._log, self._ballots, self._link, self._reporter = log, ballots, link, reporter
        self._is_refused = False  # the query itself is at fault
        self._finished_s = nan

    @property
    def is_solo(self) -> bool:
        """Whether only this party was asked: there is no peer."""
        return self._spec.only is not None

    @property
    def listeners(self) -> tuple[ActorKind, ...]:
        """The actors of this party that hear of the session."""
        return _SOLO_LISTENERS if self.is_solo else LISTENERS

    @property
    def decides_alone(self) -> bool:
        """Whether this party decides without a peer, be it lost or never asked."""
        return self.is_solo or self.peer_lost

    @property
    def decides_here(self) -> bool:
        """Whether this party decides the next step."""
        return self.decides_alone or self._spec.placement == "mirror" or self._log.aggregator is self._party

    @property
    def statistics(self) -> SessionStatistics:
        """Counters so far."""
        return self._reporter.statistics(self._link.num_resent_frames)

    # ---- the end -----------------------------------------------------------------------------------------------

    def complete(self, now_s: float, *, peer_agrees: bool) -> list[Send]:
        """The last token is committed. peer_agrees: the peer has said that its whole answer is this one."""
        assert self.reason is not None
        sends = self._end(self.reason, None, now_s)
        if peer_agrees:
            return [*sends, *self.to_peer(Done(is_reply=True), now_s), *self.free()]
        if self.is_solo:
            return [*sends, *self.free()]
        if self.peer_lost:
            return [*sends, *self.to_peer(Cancel(reason=_FINISHED_ALONE), now_s), *self.free()]
        return [*sends, *self.to_peer(Done(is_reply=False), now_s)]

    def cancel(self, now_s: float) -> list[Send]:
        """The user gave the query up: every party stops and frees it."""
        if self.is_over:
            return []
        if self.reason is not None:  # a finished cloud goes on answering a device that may not have finished
            return self.free() if self._party is Party.DEVICE else []
        sends = self.to_peer(Cancel(reason=_CANCELLED), now_s)
        return sends + self._end("cancelled", None, now_s) + self.free()

    def fail(self, reason: str, now_s: float, *, is_refused: bool = False) -> list[Send]:
        """This party cannot go on: tell the user and the peer. is_refused: the query itself is at fault."""
        if self.is_over or self.reason is not None:
            return []
        self._is_refused = is_refused
        sends = self.to_peer(self._failure(reason), now_s)
        return sends + self._end("failed", reason, now_s) + self.free()

    def adopt(self, reason: StopReason | None, now_s: float) -> None:
        """After a Resync the answer is complete for another reason, or not at all."""
        self.reason, self._finished_s = reason, now_s

    def free(self) -> list[Send]:
        """Nothing is owed to anybody any more."""
        if self.is_over:
            return []
        self.is_over = True
        return [Send(role, End(session=self._spec.session)) for role in self.listeners]

    def make_final_frame(self, now_s: float) -> LinkFrame:
        """What a driver answers for this session once it is freed."""
        frame: LinkFrame = self._link.send(self._final_body(), self._log.prefix, now_s).message
        return frame

    def _final_body(self) -> LinkBody:
        if self.reason in ("cancelled", "failed"):
            return Cancel(reason=_CANCELLED) if self.error is None else self._failure(self.error)
        return Cancel(reason=_FINISHED_ALONE) if self.decides_alone else Done(is_reply=True)

    def to_peer(self, body: LinkBody, now_s: float) -> list[Send]:
        """Across the link, where there is a peer."""
        return [] if self.is_solo else [self._link.send(body, self._log.prefix, now_s)]

    # ---- without the peer --------------------------------------------------------------------------------------

    def is_abandoned(self, now_s: float) -> bool:
        """Whether the peer has been silent, or unfinished, for too long to be waited for."""
        silence_s = self._link.silence_s(now_s)
        if self._party is Party.CLOUD:
            return silence_s > ABANDONED_S
        waited_s = 0.0 if self.reason is None else now_s - self._finished_s
        return min(waited_s, silence_s) > LINGER_S or waited_s > ABANDONED_S

    def is_peer_silent(self, now_s: float) -> bool:
        """Whether the peer has been quiet for so long that its connection should be renewed."""
        is_waiting = not self.is_solo and self.reason is None
        return is_waiting and self._link.silence_s(now_s) > self._link.loss_limit_s(0.0)

    def check_peer(self, now_s: float) -> list[Send]:
        """Declare a peer lost that has been silent for too long."""
        silence_s = self._link.silence_s(now_s)
        can_go_alone = self._party is Party.DEVICE and self.reason is None and not self.decides_alone
        if not can_go_alone or silence_s <= self._link.loss_limit_s(self._spec.peer_loss_margin_s):
            return []
        if self._spec.on_peer_loss == "wait":
            return []
        if self._spec.on_peer_loss == "fail":
            return self.fail(
                f"The cloud has been silent for {silence_s:.1f} s; check the link, "
                "or set on_peer_loss to 'continue' or 'wait'.",
                now_s,
            )
        return self._go_alone()

    def rejoin_peer(self) -> list[Send]:
        """A lost peer is back."""
        if not self.peer_lost:
            return []
        self.peer_lost = False
        return self._reporter.emit(PeerEvent(step=len(self._log.prefix), is_alone=False))

    def on_cancel(self, cancel: Cancel, now_s: float) -> list[Send]:
        """The peer gave the session up."""
        if self._party is Party.CLOUD:
            return self._end("cancelled", None, now_s) + self.free()
        if self.reason is not None:
            return self.free()
        if self._spec.on_peer_loss == "continue" and not cancel.is_refused:
            return [] if self.peer_lost else self._go_alone(cancel.reason)
        return self._end("failed", f"The cloud gave the query up: {cancel.reason}", now_s) + self.free()

    def on_last_word(self, now_s: float) -> list[Send]:
        """The peer has freed the session; a device that is not done was silent for too long."""
        if self._party is Party.CLOUD or self.reason is not None:
            return self.free()
        if self._spec.on_peer_loss != "continue":
            return self.fail(
                f"The cloud frees a query after {ABANDONED_S:.0f} s of silence and has freed this one; "
                "ask again, or set on_peer_loss to 'continue'.",
                now_s,
            )
        return [] if self.peer_lost else self._go_alone()

    def _go_alone(self, reason: str | None = None) -> list[Send]:
        self.peer_lost = True
        self._ballots.reopen()
        self._link.backlog.clear()  # a Resync brings the peer up when it returns
        return self._reporter.emit(PeerEvent(step=len(self._log.prefix), is_alone=True, reason=reason))

    def _end(self, reason: StopReason, error: str | None, now_s: float) -> list[Send]:
        self.reason, self.error, self._finished_s = reason, error, now_s
        done = DoneEvent(reason=reason, statistics=self.statistics, error=error)
        return [*self._reporter.void(len(self._log.prefix)), *self._reporter.emit(done)]

    def _failure(self, reason: str) -> Cancel:
        """A failure as the peer may know it: the device's own paths are private."""
        public = reason if self._party is Party.CLOUD else _DEVICE_FAILED
        return Cancel(reason=public, is_refused=self._is_refused)
