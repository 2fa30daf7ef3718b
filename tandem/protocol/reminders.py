"""What an actor of the own party owes, and when it should be reminded: messages within a party may get lost, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tandem.protocol.outbox import ActorKind

FIRST_S = 1.0
MAX_WAIT_S = 8.0

Debt: TypeAlias = tuple[int, bytes] | None
"""The view and the prefix on which an actor owes something; None: it owes nothing."""


class Reminder:
    """How long one actor has owed the same thing.

    Invariant: one reminder per wait, and each wait is twice the one before, so that an actor that is only slow is not
    kept from its work.
    """

    def __init__(self) -> None:
        self._debt: Debt = None
        self._since_s = 0.0
        self._wait_s = FIRST_S

    def is_due(self, debt: Debt, now_s: float) -> bool:
        """Whether to remind the actor now. debt: what it owes at present."""
        if debt is None or debt != self._debt:
            self._debt, self._since_s, self._wait_s = debt, now_s, FIRST_S
            return False
        if now_s - self._since_s < self._wait_s:
            return False
        self._since_s, self._wait_s = now_s, min(2 * self._wait_s, MAX_WAIT_S)
        return True


class Reminders:
    """A reminder for each actor of the own party that answers the coordinator."""

    def __init__(self) -> None:
        self._by_role: dict[ActorKind, Reminder] = {"decoder": Reminder(), "aggregator": Reminder()}

    def take_due(self, debts: Mapping[ActorKind, Debt], now_s: float) -> list[ActorKind]:
        """The actors to remind now. debts: what each owes at present."""
        return [role for role, reminder in self._by_role.items() if reminder.is_due(debts[role], now_s)]


class Farewells:
    """`End`s of sessions that are over, to be said again: whoever misses it would hold the session for ever.

    Invariant: each is repeated REPEATS times, and nothing is kept afterwards.
    """

    REPEATS = 3

    def __init__(self) -> None:
        self._sessions: dict[int, tuple[Reminder, int]] = {}  # with how often it was repeated

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: int, now_s: float) -> None:
        """This session is over."""
        reminder = Reminder()
        reminder.is_due((session, b""), now_s)
        self._sessions[session] = (reminder, 0)

    def take_due(self, now_s: float) -> list[int]:
        """The sessions whose `End` is to be repeated now."""
        due = []
        for session, (reminder, count) in list(self._sessions.items()):
            if reminder.is_due((session, b""), now_s):
                due.append(session)
                self._sessions[session] = (reminder, count + 1)
                if count + 1 == self.REPEATS:
                    del self._sessions[session]
        return due
