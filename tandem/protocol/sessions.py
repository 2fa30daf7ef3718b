"""What the tables of all actors but the coordinator have in common: sessions begin and end, whatever overtakes what.

Order is not promised within a site, so a message may overtake the `Begin` of its session or arrive after its `End`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Generic, TypeVar

from tandem.errors import TandemError
from tandem.messages import Begin, End
from tandem.modes.spec import SessionSpec
from tandem.protocol.outbox import Send

S = TypeVar("S")

MAX_EARLY = 256
"""Messages kept for sessions that have not begun, and ended sessions remembered."""


class ReorderBuffer:
    """What waits for a session to begin, and which sessions have ended."""

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
        """What arrived for this session, in order; it is no longer kept."""
        messages = [message for message in self._waiting if message.session == session]
        if messages:
            rest = [message for message in self._waiting if message.session != session]
            self._waiting = deque(rest, maxlen=MAX_EARLY)
        return messages


class SessionTable(ABC, Generic[S]):
    """All sessions of one actor.

    A `Begin` of a known session comes from a coordinator that was restarted: the session goes on.
    """

    def __init__(self, party: str) -> None:
        self.party = party
        self.sessions: dict[int, S] = {}
        self._early = ReorderBuffer()

    def receive(self, message: Any) -> list[Send]:
        """Any message for this actor."""
        known = self.sessions.get(message.session)
        if isinstance(message, End):
            self.sessions.pop(message.session, None)
            self._early.end(message.session)
            return []
        if isinstance(message, Begin):
            return self._begin_again(known) if known is not None else self._start(message)
        if known is None:
            self._early.keep(message)
            return []
        return self._act(known, message)

    def forget(self) -> None:
        """The coordinator that began the sessions is lost with them. Another one may begin one of the same number."""
        self.sessions.clear()
        self._early = ReorderBuffer()

    def _start(self, begin: Begin) -> list[Send]:
        if self._early.has_ended(begin.session):
            return []
        spec = SessionSpec.from_json(begin.spec)
        self.sessions[begin.session] = session = self._open(spec)
        sends = self._begin(session)
        for message in self._early.take(begin.session):
            sends += self.receive(message)
        return sends

    @abstractmethod
    def _open(self, spec: SessionSpec) -> S:
        """The state of a query."""

    @abstractmethod
    def _act(self, session: S, message: Any) -> list[Send]:
        """Any message of a known session, except its begin and end."""

    def _begin(self, session: S) -> list[Send]:
        """What a session sends as it begins."""
        return []

    def _begin_again(self, session: S) -> list[Send]:
        """What a restarted coordinator needs to know of a session."""
        return []


def misdirected(message: Any, receiver: str) -> TandemError:
    """A message that its receiver has no use for. receiver: in words."""
    return TandemError(f"A {type(message).__name__} is not for {receiver}; report this as a bug.")
