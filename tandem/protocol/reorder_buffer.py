"""Messages that overtook the `Begin` of their session or came after its `End`: order is not promised within a side.

Knows nothing of what a message says but its session.
"""

from __future__ import annotations

from collections import deque
from typing import Any

MAX_EARLY = 256
"""Messages kept, and sessions remembered that are over."""


class Early:
    """What waits for a session to begin."""

    def __init__(self) -> None:
        self._kept: deque[Any] = deque(maxlen=MAX_EARLY)
        self._over: deque[int] = deque(maxlen=MAX_EARLY)

    def keep(self, message: Any) -> None:
        """`message` is of a session that is not known, or not yet."""
        if not self.is_over(message.session):
            self._kept.append(message)

    def end(self, session: int) -> None:
        """This session is over, whether it had begun or not: what still comes of it is late."""
        if not self.is_over(session):
            self._over.append(session)
        self.take(session)

    def is_over(self, session: int) -> bool:
        """Whether its end was seen."""
        return session in self._over

    def take(self, session: int) -> list[Any]:
        """What came for this session, in order; it is kept no longer."""
        found = [message for message in self._kept if message.session == session]
        if found:
            rest = [message for message in self._kept if message.session != session]
            self._kept = deque(rest, maxlen=MAX_EARLY)
        return found
