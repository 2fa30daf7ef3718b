"""What all actors' hosts but the draft queue's have in common: sessions begin and end, whatever overtakes what.

Knows nothing of what a session does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from tandem.protocol.messages import Begin, End
from tandem.protocol.outbox import Send
from tandem.protocol.reorder_buffer import Early
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party

S = TypeVar("S")


class SessionHost(ABC, Generic[S]):
    """All sessions of one actor.

    A `Begin` of a session that is known comes from a draft queue that was started anew: the session goes on.
    """

    def __init__(self, party: Party) -> None:
        self.party = party
        self.sessions: dict[int, S] = {}
        self._early = Early()

    def receive(self, message: Any) -> list[Send]:
        """Any message for this actor."""
        known = self.sessions.get(message.session)
        if isinstance(message, End):
            self.sessions.pop(message.session, None)
            self._early.end(message.session)
            return []
        if isinstance(message, Begin):
            return self._again(known) if known is not None else self._start(message)
        if known is None:
            self._early.keep(message)
            return []
        return self._act(known, message)

    def _start(self, begin: Begin) -> list[Send]:
        if self._early.is_over(begin.session):
            return []
        spec = SessionSpec.from_json(begin.spec)
        self.sessions[begin.session] = session = self._open(spec)
        sends = self._first(session)
        for message in self._early.take(begin.session):
            sends += self.receive(message)
        return sends

    @abstractmethod
    def _open(self, spec: SessionSpec) -> S:
        """The state of a query."""

    @abstractmethod
    def _act(self, session: S, message: Any) -> list[Send]:
        """Any message of a known session but its begin and end."""

    def _first(self, session: S) -> list[Send]:
        """What a session sends as it begins."""
        return []

    def _again(self, session: S) -> list[Send]:
        """What a draft queue that was started anew has to be told."""
        return []
