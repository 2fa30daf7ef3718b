"""All sessions of one actor behind one entry: message and time in, messages out.

Sessions begin and end, whatever overtakes what: order is not promised within a site, so a message may overtake the
`Begin` of its session or arrive after its `End`.

One table per kind of actor. An actor adds delivery and a clock, the virtual-clock driver adds neither; both run these
classes.

Where queries belong to devices, the next one to open is of the device with the fewest open, so that nobody's many
queries keep another's single one waiting (max-min fairness: all open queries share every pass of the model). A query
waits at its home, which tells its peer only when it opens it, or at the peer, which meanwhile shows the home that it is
alive. Its time limit runs on, and it can be cancelled.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

from tandem.errors import Code, ConfigError, Fault, ProtocolError, TandemError, describe_origin
from tandem.events import ClientEvent, DoneEvent, Event, SessionStatistics, WaitEvent
from tandem.messages import Begin, Cancel, Done, End, Heartbeat, LinkBody, LinkFrame, Open, encode
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.modes import SessionSpec
from tandem.protocol.ballots import ListLength
from tandem.protocol.link import Backoff, LinkRoom, Stopwatch
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Peer
from tandem.protocol.routes import LISTENERS, ActorKind, Send
from tandem.protocol.session import (
    ABANDONED_S,
    FIRST_REMINDER_S,
    MAX_REMINDER_S,
    Session,
    StopCheck,
    is_last_word,
)
from tandem.topology import at_start, in_words

_LOST = Fault(code=Code.LOST)
_log = logging.getLogger("tandem")

S = TypeVar("S", bound="ActorSession")

MAX_EARLY_FRAMES = 256
"""Frames kept for sessions that the peer has opened and this party has not."""
MAX_EARLY_BYTES = MAX_FRAME_BYTES
"""All these frames together have at most so many; what is dropped comes again."""
MEASURE_AGAIN_S = 60.0
"""Time between queries that probe the link; the profiler remembers in between."""
TICK_S, MIN_TICK_S = 0.05, 0.005
"""Between two ticks while a session is open, at most and at least; a wait ends a tick late at most."""
MAX_CLOSED_SESSIONS = 256
"""Ended sessions that still answer their peer."""
MAX_WAITING = 256
"""Queries that wait at one party; one more is refused."""
RETRY_AFTER_S = 30
"""When there may be room again: a party cannot know, but all that wait will not have ended at once."""
OWN_REMEDY = "raise cluster.max_sessions"
CLOUD_REMEDY = "ask the cloud's owner to raise devices.max_queries"
"""The remedies that make room, where the limit is a setting of this party, or one of the cloud that it has joined."""
NUM_FAREWELLS = 3
"""Times that the `End` of a session is said again: an actor that misses it would hold the session for ever."""


@dataclass(slots=True)
class Waiting:
    """A query that is not open yet."""

    spec: SessionSpec
    silence: Stopwatch  # of its peer
    incarnation: int | None  # as `Session.begin` has it


class CoordinatorTable:
    """The coordinator (draft queue) of one party, with at most `max_open` sessions.

    Invariant: while a query waits, `max_open` sessions are open, or the next tick opens it.
    """

    def __init__(
        self,
        party: str,
        make_stop_check: Callable[[SessionSpec], StopCheck],
        find_obstacle: Callable[[], str | None] = lambda: None,
        *,
        max_open: int = sys.maxsize,
    ) -> None:
        """make_stop_check: makes the stop rule of a query. find_obstacle: why no query can be taken now, if so."""
        self.party = party
        self.sessions: dict[int, Session] = {}
        self.max_open = max_open  # may change; where it falls, open sessions go on
        self.remedy = OWN_REMEDY  # of those whose queries begin here, where too many wait
        self.owner_of: Callable[[int], str] = lambda session: ""  # whose query it is, by session
        self.num_refused = 0  # queries of a peer that could not be opened
        self.num_refused_frames = 0  # whose sender may not send such a thing, or that proved unusable
        self._make_stop_check = make_stop_check
        self._find_obstacle = find_obstacle
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()
        self._farewells: dict[int, Backoff] = {}  # of sessions that are over, whose `End` is to be said again
        # of all queries: when one last probed the link, room on the links by owner and peer, length of race lists
        self._measured_s = -inf
        self._rooms: defaultdict[tuple[str, str], LinkRoom] = defaultdict(LinkRoom)
        self._list_length: ListLength | None = None
        self._early: list[tuple[float, str, LinkFrame, int]] = []  # with time of arrival, sender and size
        # of ended sessions: what each peer is answered
        self._final: OrderedDict[int, dict[str, LinkFrame]] = OrderedDict()

    @property
    def num_early_frames(self) -> int:
        """Frames kept for sessions that are not open yet."""
        return len(self._early)

    @property
    def num_closed_sessions(self) -> int:
        """Ended sessions that still answer their peer."""
        return len(self._final)

    @property
    def num_waiting(self) -> int:
        """Queries that are not open yet."""
        return len(self._waiting)

    def holds(self, session: int) -> bool:
        """Whether a query is open or waits."""
        return session in self.sessions or session in self._waiting

    def open(self, spec: SessionSpec, now_s: float, incarnation: int | None = None) -> list[Send]:
        """A query starts, or waits until there is room. incarnation: as `Session.begin` has it."""
        if not self._waiting and len(self.sessions) < self.max_open:
            return self._start(spec, now_s, incarnation)
        if len(self._waiting) >= MAX_WAITING:
            return self._refuse(spec, now_s)
        self._waiting[spec.session] = Waiting(spec, Stopwatch(now_s), incarnation)
        if spec.home == self.party:
            return [_to_client(spec, WaitEvent(num_ahead=len(self._waiting) - 1))]
        return [self._toward_home(spec, Heartbeat(), now_s)]

    def _start(self, spec: SessionSpec, now_s: float, incarnation: int | None = None) -> list[Send]:
        """Frames of the peer that arrived before the query are taken in."""
        obstacle = self._find_obstacle()
        if measures := spec.rules.is_placed and now_s - self._measured_s > MEASURE_AGAIN_S:
            self._measured_s = now_s
        session = Session(spec, self.party, self._make_stop_check(spec), now_s, measures=measures)
        self.sessions[spec.session] = session
        self._share(session)
        early = [entry for entry in self._early if entry[2].session == spec.session]
        self._early = [entry for entry in self._early if entry[2].session != spec.session]
        sends = session.begin(now_s, incarnation)
        for arrived_s, source, frame, _ in early:
            sends += self._take_in(session, frame, now_s, source, now_s - arrived_s)
        if obstacle is not None:
            sends += session.fail(obstacle, now_s, _LOST)
        return self._close(session, sends, now_s)

    def _share(self, session: Session) -> None:
        """Race lists go on as long as those of the query before, where they begin alike."""
        for name, peer in session.peers.items():
            peer.round_trips.room = self._rooms[self.owner_of(session.spec.session), name]
        if session.spec.rules.has_race_lists:
            if self._list_length is None or self._list_length.first != session.spec.race_depth:
                self._list_length = session.race_votes.length
            session.race_votes.length = self._list_length

    def restart(self, role: ActorKind) -> list[Send]:
        """Give every session as it stands to an actor of this party that was restarted."""
        return [send for session in self.sessions.values() for send in session.restart(role)]

    def receive(self, message: Any, now_s: float, source: str = "") -> list[Send]:
        """Any message for a coordinator. source: the peer that a frame is from; by default the only one."""
        session, is_frame = self.sessions.get(message.session), isinstance(message, LinkFrame)
        if is_frame and (waiting := self._waiting.get(message.session)) is not None:
            return self._receive_early(message, waiting, now_s, source)
        if session is None:
            sends = self._answer_closed(message, now_s, source) if is_frame else []
        else:
            acted = (
                self._take_in(session, message, now_s, source)
                if is_frame
                else session.receive(message, now_s)
            )
            sends = self._close(session, acted, now_s)
        return sends + self._admit(now_s)

    def _take_in(
        self, session: Session, frame: LinkFrame, now_s: float, source: str, waited_s: float = 0.0
    ) -> list[Send]:
        """A frame of a peer. One that its sender has no right to send is refused, and the session continues."""
        try:
            return session.receive_frame(frame, now_s, source, waited_s)
        except ProtocolError as error:
            session.refusals.append(str(error))
            return []

    def _count_refusals(self, session: Session) -> None:
        for problem in session.refusals:
            self.num_refused_frames += 1
            session.report.count("num_refused_frames")
            if self.num_refused_frames.bit_count() == 1:  # ever more rarely: a peer decides how often
                _log.warning(
                    "%s refused a frame, %d so far: %s",
                    at_start(self.party),
                    self.num_refused_frames,
                    problem,
                )
        session.refusals.clear()

    def has_silent_peer(self, now_s: float) -> bool:
        """Whether a peer has been quiet for so long that its connection should be renewed."""
        going_on = [session for session in self.sessions.values() if session.end.reason is None]
        peers = [peer for session in going_on for peer in session.peers.values()]
        return any(peer.liveness.silence_s(now_s) > peer.silence_limit_s(0.0) for peer in peers)

    @property
    def needs_ticks(self) -> bool:
        """Whether there are timers to run."""
        return bool(self.sessions or self._farewells or self._waiting)

    @property
    def tick_s(self) -> float:
        """Between two ticks: less than TICK_S where a query asked here has little patience (`decoding.patience_s`)."""
        asked_here = (each.spec for each in self.sessions.values() if each.routes.is_home)
        patience_s = min((spec.decoding.patience_s for spec in asked_here), default=inf)
        return max(MIN_TICK_S, min(TICK_S, patience_s / 4))

    def tick(self, now_s: float) -> list[Send]:
        """Timers of all sessions, and of those that have just ended; then whatever waits may have room."""
        for number, waiting in list(self._waiting.items()):
            waiting.silence.tick(now_s)
            if waiting.spec.home != self.party and waiting.silence.length_s(now_s) > ABANDONED_S:
                del self._waiting[number]
        ended = [session for session, backoff in self._farewells.items() if backoff.take_due(now_s)]
        self._farewells = {
            session: backoff
            for session, backoff in self._farewells.items()
            if backoff.num_due < NUM_FAREWELLS
        }
        farewells = [Send(role, End(session=session)) for session in ended for role in LISTENERS]
        return farewells + self._apply(lambda session: session.tick(now_s), now_s) + self._admit(now_s)

    def resend_all(self, now_s: float, peer: str = "", sessions: Collection[int] | None = None) -> list[Send]:
        """There is a new connection to a peer (default: to all): send at once whatever it has not acknowledged.

        sessions: those to which it matters, default: all.
        """
        return self._apply(lambda session: session.resend_all(now_s, peer), now_s, sessions)

    def cancel(self, session_id: int, now_s: float) -> list[Send]:
        """The user gave up a query, open or not."""
        if (waiting := self._waiting.pop(session_id, None)) is not None:
            return [_to_client(waiting.spec, DoneEvent(reason="cancelled", statistics=SessionStatistics()))]
        return self._apply(lambda session: session.cancel(now_s), now_s, {session_id}) + self._admit(now_s)

    def fail(self, session_id: int, reason: str, now_s: float) -> list[Send]:
        """A session cannot go on."""
        return self._apply(lambda session: session.fail(reason, now_s), now_s, {session_id})

    def fail_all(self, reason: str, now_s: float) -> list[Send]:
        """An actor of this party was lost: its sessions cannot go on."""
        return self._apply(lambda session: session.fail(reason, now_s, _LOST), now_s)

    def _apply(
        self, act: Callable[[Session], list[Send]], now_s: float, sessions: Collection[int] | None = None
    ) -> list[Send]:
        sends: list[Send] = []
        for session in list(self.sessions.values()):
            if sessions is not None and session.spec.session not in sessions:
                continue
            try:
                acted = act(session)
            except Exception as error:  # the others' timers must go on
                (kind, where), party = describe_origin(error), in_words(self.party)
                _log.error("session %d of %s failed with %s at %s", session.spec.session, party, kind, where)
                reason = f"The draft queue of {party} failed on this query with {kind}; see its log."
                acted = session.fail(reason, now_s)
            sends += self._close(session, acted, now_s)
        return sends

    def _close(self, session: Session, sends: list[Send], now_s: float) -> list[Send]:
        self._count_refusals(session)
        if session.is_over and self.sessions.pop(session.spec.session, None) is not None:
            self._farewells[session.spec.session] = Backoff(now_s, FIRST_REMINDER_S, MAX_REMINDER_S)
            if not session.peers:  # no peer will ask how it ended
                return sends
            self._keep_final(session.spec.session, session.make_final_frames(now_s))
        return sends

    def _keep_final(self, session: int, frames: dict[str, LinkFrame]) -> None:
        self._final[session] = frames
        while len(self._final) > MAX_CLOSED_SESSIONS:
            self._final.popitem(last=False)

    def _answer_closed(self, frame: LinkFrame, now_s: float, source: str) -> list[Send]:
        """Tell a peer that is still busy how the session ended; keep a frame of an unknown session for later."""
        if (final := self._final.get(frame.session)) is not None:
            peer, word = next(iter(final.items()))  # of a query that was refused, that to who opened it
            last = Send("peer", final.get(source, word), source or peer)
            return [] if is_last_word(frame.body) else [last]
        if isinstance(frame.body, Open):
            return self._open_for_peer(frame, frame.body, now_s, source)
        self.keep_early(frame, now_s, source)
        return []

    def keep_early(self, frame: LinkFrame, now_s: float, source: str = "") -> None:
        """Keep a frame until its session opens."""
        self._early.append((now_s, source, frame, len(encode(frame))))
        del self._early[:-MAX_EARLY_FRAMES]
        while sum(num_bytes for _, _, _, num_bytes in self._early) > MAX_EARLY_BYTES:
            del self._early[0]

    def _open_for_peer(self, frame: LinkFrame, opening: Open, now_s: float, source: str) -> list[Send]:
        """A query begins at a peer; one that cannot be opened here is refused with one sentence. Where its sender has
        heard this party in it, it had begun before this coordinator was started, which asks for a Resync."""
        has_begun = bool(frame.echo)
        try:
            spec = SessionSpec.from_json(opening.spec)
            topology = spec.roles.topology
            if (
                spec.session != frame.session
                or topology.home == self.party
                or self.party not in topology.parties
                or source not in ("", topology.toward_home(self.party))
            ):
                raise ProtocolError(
                    f"{at_start(self.party)} cannot take part in session {frame.session:08x} as it was opened "
                    f"(session {spec.session:08x}, home {topology.home}); report this as a bug."
                )
            if has_begun and topology.authority == self.party:  # which alone knows what was decided
                raise ProtocolError(f"{at_start(self.party)} was restarted during this query; ask again.")
        except (ProtocolError, ConfigError) as error:
            self.num_refused += 1
            if self.num_refused.bit_count() == 1:
                _log.warning(
                    "%s refused a query, %d so far: %s", at_start(self.party), self.num_refused, error
                )
            refusal = _to_peer(frame.session, source, Cancel(reason=str(error)), now_s)
            self._keep_final(frame.session, {source: refusal.message})
            return [refusal]
        sends = self.open(spec, now_s, int(1e6 * now_s) % 2**32 if has_begun else None)
        return sends + self.receive(frame, now_s, source) if frame.session in self.sessions else sends

    # ---- queries that wait -------------------------------------------------------------------------------------

    def _admit(self, now_s: float) -> list[Send]:
        sends: list[Send] = []
        while self._waiting and len(self.sessions) < self.max_open:
            num_open = Counter(map(self.owner_of, self.sessions))
            # of the least that are equal, `min` takes the first: what has waited longest
            following = min(self._waiting, key=lambda session: num_open[self.owner_of(session)])
            waiting = self._waiting.pop(following)
            sends += self._start(waiting.spec, now_s, waiting.incarnation)
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
        peer = spec.roles.topology.toward_home(self.party) or spec.home
        return _to_peer(spec.session, peer, body, now_s)


def _to_peer(session: int, peer: str, body: LinkBody, now_s: float) -> Send:
    """In a session that has not begun here: nothing is committed, nothing received."""
    return Peer(session, now_s, peer).send(body, Prefix(session), now_s)


def _to_client(spec: SessionSpec, event: Event) -> Send:
    return Send("client", ClientEvent(spec.session, event))


# ---- the other actors ------------------------------------------------------------------------------------------------

MAX_EARLY = 256
"""Messages kept for sessions that have not begun, and ended sessions remembered."""


class ReorderBuffer:
    """Messages that wait for a session to begin, and the sessions that have ended."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque(maxlen=MAX_EARLY)
        self._ended: deque[int] = deque(maxlen=MAX_EARLY)

    def keep(self, message: Any) -> None:
        """Keep a message of a session that has not begun; one of an ended session is dropped."""
        if not self.has_ended(message.session):
            self._waiting.append(message)

    def end(self, session: int) -> None:
        """This session has ended, whether it had begun or not: what still arrives for it is late."""
        if not self.has_ended(session):
            self._ended.append(session)
        self.take(session)

    def has_ended(self, session: int) -> bool:
        """Whether its end was seen."""
        return session in self._ended

    def take(self, session: int) -> list[Any]:
        """Take what arrived for this session, in order; it is no longer kept."""
        messages = [message for message in self._waiting if message.session == session]
        if messages:
            rest = [message for message in self._waiting if message.session != session]
            self._waiting = deque(rest, maxlen=MAX_EARLY)
        return messages


class ActorSession(ABC):
    """One query at an actor."""

    def begin(self) -> list[Send]:
        """The messages of a session as it begins."""
        return []

    def begin_again(self) -> list[Send]:
        """Tell a restarted coordinator about the session."""
        return []

    @abstractmethod
    def receive(self, message: Any) -> list[Send]:
        """Any message of the session, except its begin and end."""


class SessionTable(ABC, Generic[S]):
    """All sessions of one actor.

    A `Begin` of a known session comes from a coordinator that was restarted: the session continues.
    """

    def __init__(self, party: str) -> None:
        self.party = party
        self.sessions: dict[int, S] = {}
        self._early = ReorderBuffer()

    def receive(self, message: Any) -> list[Send]:
        """Any message for this actor."""
        session = self.sessions.get(message.session)
        if isinstance(message, End):
            self.sessions.pop(message.session, None)
            self._early.end(message.session)
            return []
        if isinstance(message, Begin):
            return self._start(message) if session is None else session.begin_again()
        if session is None:
            self._early.keep(message)
            return []
        return session.receive(message)

    def forget(self) -> None:
        """The coordinator that began the sessions is lost with them. Another one may begin one of the same number."""
        self.sessions.clear()
        self._early = ReorderBuffer()

    def _start(self, begin: Begin) -> list[Send]:
        if self._early.has_ended(begin.session):
            return []
        spec = begin.spec if isinstance(begin.spec, SessionSpec) else SessionSpec.from_json(begin.spec)
        self.sessions[begin.session] = session = self._open(spec)
        sends = session.begin()
        for message in self._early.take(begin.session):
            sends += self.receive(message)
        return sends

    @abstractmethod
    def _open(self, spec: SessionSpec) -> S:
        """The state of a query."""


def misdirected(message: Any, receiver: str) -> TandemError:
    """A message that its receiver has no use for. receiver: in words."""
    return TandemError(f"A {type(message).__name__} is not for {receiver}; report this as a bug.")
