"""Messages between actors that share a process: handed over as objects, in order, none within another's handler.

What actors send is delivered at the end of a *turn*, the work of one event-loop callback: frames for other processes in
one write per receiver, then the oldest message for an actor of this process, and so on until nothing is left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from tandem.transport.port import DataPlane

Receive = Callable[[Any, str], None]
"""Called with a message and the name of the actor that sent it."""

_log = logging.getLogger("tandem")


class Exchange:
    """The actors of one process, by name. One that has its process for itself is the only one of its exchange.

    Invariant: at most one handler runs at a time, and what it sends is received after it has returned.
    """

    def __init__(self) -> None:
        self._members: dict[str, Receive] = {}
        self._messages: deque[tuple[str, str, Any]] = deque()  # sender, receiver, message
        self._unflushed: dict[DataPlane, None] = {}
        self._depth = 0  # turns within turns

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def join(self, name: str, receive: Receive) -> None:
        """Add an actor, or give it another receiver."""
        self._members[name] = receive

    def post(self, source: str, to: str, message: Any) -> None:
        """Hand a message to an actor of this process."""
        with self.turn():
            self._messages.append((source, to, message))

    def send(self, plane: DataPlane, to: str, frame: bytes) -> None:
        """Hand a frame for another process to a data plane."""
        with self.turn():
            plane.send(to, frame)
            self._unflushed[plane] = None

    def turn(self) -> Exchange:
        """`with exchange.turn():` delivers at the end what is sent within; one within another belongs to it.

        No `await` within.
        """
        return self

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        try:
            if self._depth == 1:
                self._deliver()
        finally:
            self._depth -= 1

    def _deliver(self) -> None:
        self._flush()  # first, so that no peer waits for what is computed here
        while self._messages:
            source, to, message = self._messages.popleft()
            try:
                self._members[to](message, source)
            except Exception:
                _log.exception("%s failed on a %s from %s", to, type(message).__name__, source)
            self._flush()

    def _flush(self) -> None:
        if self._unflushed:
            planes, self._unflushed = self._unflushed, {}
            for plane in planes:
                plane.flush()
