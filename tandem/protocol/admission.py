"""A coordinator's door: so many queries are open at once, the rest wait in the order in which they came.

Where queries belong to devices, the next one is of the device with the fewest open, so that nobody's many queries keep
another's single one waiting (max-min fairness: all open queries share every pass of the model).

A query waits at its home, which tells its peer only when it opens it, or at the peer, which meanwhile shows the home
that it is alive. Its time limit runs on, and it can be cancelled.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tandem.errors import Code, Fault
from tandem.events import ClientEvent, DoneEvent, Event, SessionStatistics, WaitEvent
from tandem.messages import Cancel, Done, Heartbeat, LinkBody, LinkFrame, Open
from tandem.modes.spec import SessionSpec
from tandem.protocol.liveness import Stopwatch
from tandem.protocol.outbox import Send
from tandem.protocol.peer import Peer
from tandem.protocol.prefix import Prefix
from tandem.protocol.session import ABANDONED_S, StopCheck
from tandem.protocol.table import CoordinatorTable
from tandem.topology import at_start

MAX_WAITING = 256
"""Queries that wait at one party; one more is refused."""
RETRY_AFTER_S = 30
"""When there may be room again: a party cannot know, but all that wait will not have ended at once."""
OWN_REMEDY = "raise cluster.max_sessions"
CLOUD_REMEDY = "ask the cloud's owner to raise devices.max_queries"
"""The remedies that make room, where the limit is a setting of this party, or one of the cloud that it has joined."""


@dataclass(slots=True)
class Waiting:
    """A query that is not open yet."""

    spec: SessionSpec
    silence: Stopwatch  # of its peer


class AdmittingTable(CoordinatorTable):
    """The coordinator (draft queue) of one party, with at most `max_open` sessions.

    Invariant: while a query waits, `max_open` sessions are open, or the next tick opens it.
    """

    def __init__(
        self,
        party: str,
        make_stop_check: Callable[[SessionSpec], StopCheck],
        find_obstacle: Callable[[], str | None] = lambda: None,
        *,
        max_open: int,
    ) -> None:
        super().__init__(party, make_stop_check, find_obstacle)
        self.max_open = max_open  # may change; where it falls, open sessions go on
        self.remedy = OWN_REMEDY  # of those whose queries begin here, where too many wait
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        """Queries that are not open yet."""
        return len(self._waiting)

    @property
    def needs_ticks(self) -> bool:
        """Whether there are timers to run."""
        return super().needs_ticks or bool(self._waiting)

    def holds(self, session: int) -> bool:
        """Whether a query is open or waits."""
        return session in self.sessions or session in self._waiting

    def open(self, spec: SessionSpec, now_s: float) -> list[Send]:
        """A query starts, or waits until there is room."""
        if not self._waiting and len(self.sessions) < self.max_open:
            return super().open(spec, now_s)
        if len(self._waiting) >= MAX_WAITING:
            return self._refuse(spec, now_s)
        self._waiting[spec.session] = Waiting(spec, Stopwatch(now_s))
        if spec.home == self.party:
            return [_to_client(spec, WaitEvent(num_ahead=len(self._waiting) - 1))]
        return [self._toward_home(spec, Heartbeat(), now_s)]

    def receive(self, message: object, now_s: float, source: str = "") -> list[Send]:
        """Any message for a coordinator. source: the peer that a frame is from; by default the only one."""
        if isinstance(message, LinkFrame) and (waiting := self._waiting.get(message.session)) is not None:
            return self._receive_early(message, waiting, now_s, source)
        return super().receive(message, now_s, source) + self._admit(now_s)

    def tick(self, now_s: float) -> list[Send]:
        """Timers of all sessions; then whatever waits may have room."""
        for session, waiting in list(self._waiting.items()):
            waiting.silence.tick(now_s)
            if waiting.spec.home != self.party and waiting.silence.length_s(now_s) > ABANDONED_S:
                del self._waiting[session]
        return super().tick(now_s) + self._admit(now_s)

    def cancel(self, session_id: int, now_s: float) -> list[Send]:
        """The user gave up a query, open or not."""
        if (waiting := self._waiting.pop(session_id, None)) is not None:
            return [_to_client(waiting.spec, DoneEvent(reason="cancelled", statistics=SessionStatistics()))]
        return super().cancel(session_id, now_s) + self._admit(now_s)

    def _admit(self, now_s: float) -> list[Send]:
        """Open what is next, as long as there is room."""
        sends: list[Send] = []
        while self._waiting and len(self.sessions) < self.max_open:
            num_open = Counter(map(self.owner_of, self.sessions))
            # of the least that are equal, `min` takes the first: what has waited longest
            following = min(self._waiting, key=lambda session: num_open[self.owner_of(session)])
            sends += super().open(self._waiting.pop(following).spec, now_s)
        return sends

    def _receive_early(self, frame: LinkFrame, waiting: Waiting, now_s: float, source: str) -> list[Send]:
        """The home of a waiting query works on it, or has given it up."""
        if waiting.spec.home == self.party:
            return []  # no peer knows of it
        if isinstance(frame.body, Cancel | Done):
            del self._waiting[frame.session]
            return []
        waiting.silence.restart(now_s)
        if not isinstance(frame.body, Heartbeat | Open):
            self.keep_early(frame, now_s, source)
        return [self._toward_home(waiting.spec, Heartbeat(), now_s)]

    def _refuse(self, spec: SessionSpec, now_s: float) -> list[Send]:
        self.num_refused += 1
        is_own = spec.home == self.party
        fault = Fault(code=Code.BUSY, retry_after_s=RETRY_AFTER_S)
        reason = (
            f"{at_start(self.party)} is busy: {len(self.sessions)} queries are open and {len(self._waiting)} wait; "
            f"retry after {RETRY_AFTER_S} s, or {self.remedy if is_own else f'ask its owner to {OWN_REMEDY}'}."
        )
        if not is_own:
            return [self._toward_home(spec, Cancel(reason=reason, fault=fault), now_s)]
        done = DoneEvent(reason="failed", statistics=SessionStatistics(), error=reason, fault=fault)
        return [_to_client(spec, done)]

    def _toward_home(self, spec: SessionSpec, body: LinkBody, now_s: float) -> Send:
        """In a session that has not begun here: nothing is committed, nothing received."""
        peer = spec.roles.topology.toward_home(self.party) or spec.home
        return Peer(spec.session, now_s, peer).send(body, Prefix(spec.session), now_s)


def _to_client(spec: SessionSpec, event: Event) -> Send:
    return Send("client", ClientEvent(spec.session, event))
