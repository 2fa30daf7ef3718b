"""All sessions of one actor behind one entry: message and time in, messages out.

One host class per actor. An actor adds delivery and a clock, the virtual-clock driver adds neither; both run
these classes. Knows nothing of Ray, sockets or models.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from tandem.codecs.top_p import Codec
from tandem.errors import TandemError
from tandem.profiler.session import ProfilerSession
from tandem.protocol.aggregating import AggregatorSession
from tandem.protocol.coordinator import Finished, SessionCoordinator
from tandem.protocol.drafting import DraftingSession, Job
from tandem.protocol.messages import (
    Ballot,
    Cancel,
    Done,
    LinkFrame,
    Message,
    Observations,
    Placement,
    Profile,
    SoloBallot,
)
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.sessions import SessionHost
from tandem.protocol.spec import SessionSpec
from tandem.scheduler.session import SchedulerSession
from tandem.topology import Party

MAX_EARLY_FRAMES = 256
"""Frames kept for sessions that the peer has opened and this side not yet."""
MEASURE_AGAIN_S = 60.0
"""Between queries that probe the link; the profiler remembers meanwhile."""
MAX_CLOSED_SESSIONS = 256
"""Ended sessions that are still answered for."""


class CoordinatorTable:
    """The draft queue of one side."""

    def __init__(self, party: Party, finished: Callable[[SessionSpec], Finished]) -> None:
        """`finished` makes the stop rule of a query."""
        self.party = party
        self.sessions: dict[int, SessionCoordinator] = {}
        self._finished = finished
        self._measured_s = -inf  # when a query last probed the link
        self._early: list[LinkFrame] = []
        self._closed: OrderedDict[int, LinkFrame] = OrderedDict()

    def open(self, spec: SessionSpec, now_s: float) -> list[Send]:
        """A query starts; frames of the peer that came before it are taken in."""
        measures = spec.only is None and now_s - self._measured_s > MEASURE_AGAIN_S
        if measures:
            self._measured_s = now_s
        session = SessionCoordinator(spec, self.party, self._finished(spec), now_s, measures=measures)
        self.sessions[spec.session] = session
        early = [frame for frame in self._early if frame.session == spec.session]
        self._early = [frame for frame in self._early if frame.session != spec.session]
        sends = session.begin(now_s)
        for frame in early:
            sends += session.receive(frame, now_s)
            session.link.ignore_echo()
        return sends

    def reopen(self, spec: SessionSpec, incarnation: int, now_s: float) -> list[Send]:
        """A query goes on whose state was lost with this side's former draft queue: the cloud asks for a Resync."""
        session = SessionCoordinator(spec, self.party, self._finished(spec), now_s)
        self.sessions[spec.session] = session
        return session.rejoin(incarnation, now_s)

    def restarted(self, role: ActorKind) -> list[Send]:
        """Another actor of this side was started anew: it is given every session as it stands."""
        return [send for session in self.sessions.values() for send in session.restarted(role)]

    def receive(self, message: Any, now_s: float) -> list[Send]:
        """Any message for a draft queue."""
        session = self.sessions.get(message.session)
        if session is not None:
            return self._after(session, session.receive(message, now_s), now_s)
        return self._answer_for_closed(message) if isinstance(message, LinkFrame) else []

    def tick(self, now_s: float) -> list[Send]:
        """Timers of all sessions."""
        return self._each(lambda session: session.tick(now_s), now_s)

    def reconnected(self, now_s: float) -> list[Send]:
        """A new connection to the peer stands."""
        return self._each(lambda session: session.reconnected(now_s), now_s)

    def cancel(self, session_id: int, now_s: float) -> list[Send]:
        """The user gave a query up."""
        session = self.sessions.get(session_id)
        return [] if session is None else self._after(session, session.cancel(now_s), now_s)

    def fail(self, session_id: int, reason: str, now_s: float) -> list[Send]:
        """A session cannot go on."""
        session = self.sessions.get(session_id)
        return [] if session is None else self._after(session, session.fail(reason, now_s), now_s)

    def fail_all(self, reason: str, now_s: float) -> list[Send]:
        """An actor of this side was lost: its sessions cannot go on."""
        return self._each(lambda session: session.fail(reason, now_s), now_s)

    def _each(self, act: Callable[[SessionCoordinator], list[Send]], now_s: float) -> list[Send]:
        sends: list[Send] = []
        for session in list(self.sessions.values()):
            sends += self._after(session, act(session), now_s)
        return sends

    def _after(self, session: SessionCoordinator, sends: list[Send], now_s: float) -> list[Send]:
        if session.is_over and self.sessions.pop(session.spec.session, None) is not None:
            if session.is_lone:  # no peer will ask how it ended
                return sends
            self._closed[session.spec.session] = session.final_frame(now_s)
            while len(self._closed) > MAX_CLOSED_SESSIONS:
                self._closed.popitem(last=False)
        return sends

    def _answer_for_closed(self, frame: LinkFrame) -> list[Send]:
        """A peer that is still at it learns how the session ended; an unknown session is kept for later."""
        is_last_word = isinstance(frame.body, Cancel) or (
            isinstance(frame.body, Done) and frame.body.is_reply
        )
        if (final := self._closed.get(frame.session)) is not None:
            return [] if is_last_word else [Send("peer", final)]
        self._early.append(frame)
        del self._early[:-MAX_EARLY_FRAMES]
        return []


class DraftingTable(SessionHost[DraftingSession]):
    """The decoder of one side: plans for all its sessions, one job at a time. After `End` the driver frees the session
    in the engine."""

    def __init__(self, party: Party, text: Callable[[Sequence[int]], str]) -> None:
        """`text` turns answer tokens into text."""
        super().__init__(party)
        self._text = text

    def _open(self, spec: SessionSpec) -> DraftingSession:
        return DraftingSession(spec, self.party, self._text)

    def _first(self, session: DraftingSession) -> list[Send]:
        return session.begin()

    def _again(self, session: DraftingSession) -> list[Send]:
        return session.restart_peer()

    def _act(self, session: DraftingSession, message: Any) -> list[Send]:
        return session.receive(message)

    def next_job(self) -> Job | None:
        """The next thing to compute. Sessions take turns: the one served last goes to the end."""
        for key, session in list(self.sessions.items()):
            if (job := session.next_job()) is not None:
                self.sessions[key] = self.sessions.pop(key)
                return job
        return None


class AggregatingTable(SessionHost[AggregatorSession]):
    """The aggregator of one side."""

    def __init__(self, party: Party, codec: Codec) -> None:
        super().__init__(party)
        self.codec = codec

    def _open(self, spec: SessionSpec) -> AggregatorSession:
        return AggregatorSession(spec, self.party, self.codec)

    def _act(self, session: AggregatorSession, message: Any) -> list[Send]:
        match message:
            case Ballot():
                return [Send("draft_queue", session.decide(message))]
            case SoloBallot():
                return [Send("draft_queue", session.decide_alone(message))]
            case Placement():
                session.advise(message.aggregator)
                return []
            case _:
                raise _misdirected(message, "an aggregator")


class ProfilingTable(SessionHost[ProfilerSession]):
    """The profiler of one side. What it learned in one query is where the next begins."""

    def __init__(self, party: Party) -> None:
        super().__init__(party)
        self._latest: ProfilerSession | None = None

    def _open(self, spec: SessionSpec) -> ProfilerSession:
        self._latest = ProfilerSession(spec, self.party, self._latest)
        return self._latest

    def _first(self, session: ProfilerSession) -> list[Send]:
        return session.begin()

    def _act(self, session: ProfilerSession, message: Any) -> list[Send]:
        if not isinstance(message, Observations):
            raise _misdirected(message, "a profiler")
        return session.observe(*message.steps)


class SchedulingTable(SessionHost[SchedulerSession]):
    """The scheduler of one side."""

    def _open(self, spec: SessionSpec) -> SchedulerSession:
        return SchedulerSession(spec, self.party)

    def _act(self, session: SchedulerSession, message: Any) -> list[Send]:
        if not isinstance(message, Profile):
            raise _misdirected(message, "a scheduler")
        return session.observe(message)


def _misdirected(message: Message, receiver: str) -> TandemError:
    return TandemError(f"A {type(message).__name__} is not for {receiver}; report this as a bug.")


def sessions_of(hosts: Sequence[Any]) -> Iterator[int]:
    """Ids of all sessions that any of `hosts` still holds; empty once everything is freed."""
    for host in hosts:
        yield from host.sessions
