"""The link between sites that share a process and an event loop: the bytes that a socket would carry, handed over.

Frames are encoded, joined and cut apart as on a socket, and counted alike; there is no port, no proof and no delay. A
site behind a real link has another `NewPlane` and is the same otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from tandem.errors import ProtocolError
from tandem.transport.port import DataPlane, Endpoint, FrameSplitter, PlaneOwner


class MemoryNetwork:
    """The ends of all links of one process, by name."""

    def __init__(self) -> None:
        self._planes: dict[str, MemoryPlane] = {}

    def new_plane(self, owner: PlaneOwner) -> MemoryPlane:
        """A `NewPlane`: the end of an actor's links."""
        return MemoryPlane(owner, self._planes)


class MemoryPlane(DataPlane):
    """All links of one actor to others on the same event loop."""

    def __init__(self, owner: PlaneOwner, planes: dict[str, MemoryPlane]) -> None:
        super().__init__(owner)
        self.name = owner.name
        self._planes = planes
        self._splitters: dict[str, FrameSplitter] = {}  # of the actors to which there is a link

    async def start(self) -> Endpoint:
        """Be found by others."""
        self._planes[self.name] = self
        return Endpoint(self.name)

    async def connect(self, endpoint: Endpoint) -> None:
        """Open a link. Raises ProtocolError where no such actor was started in this process."""
        self.renew(endpoint.name)
        if not self.is_connected(endpoint.name):
            raise ProtocolError(
                f"{self.name} finds no {endpoint.name} in this process; start that site first."
            )

    def _write(self, name: str, data: bytes) -> bool:
        """They arrive in a later turn of the event loop."""
        if is_open := self.is_connected(name):
            asyncio.get_running_loop().call_soon(self._planes[name].receive, self.name, data)
        return is_open

    def is_connected(self, to: str) -> bool:
        """Whether there is a link to an actor."""
        return to in self._splitters

    def renew(self, to: str) -> None:
        """Open a link again if the other end is there and this one was closed or never open."""
        other = self._planes.get(to)
        if other is not None and not self.is_connected(to):
            for end, name in ((self, to), (other, self.name)):
                end.open_to(name)

    async def close(self) -> None:
        """Drop all links; the other ends notice."""
        self._planes.pop(self.name, None)
        for name in list(self._splitters):
            del self._splitters[name]
            self._planes[name].lose(self.name)

    # ---- called by other ends --------------------------------------------------------------------------------

    def open_to(self, name: str) -> None:
        """There is a link to `name`."""
        self._splitters[name] = FrameSplitter()
        self.counters[name].connections += 1
        self._owner.on_connected(name)

    def receive(self, source: str, data: bytes) -> None:
        """Bytes arrived; none do after the link was closed."""
        if (splitter := self._splitters.get(source)) is None:
            return
        frames, counters = splitter.feed(data), self.counters[source]
        counters.received_frames += len(frames)
        counters.received_bytes += len(data)
        self._owner.on_frames(source, frames)

    def lose(self, name: str) -> None:
        """The other end was closed."""
        if self._splitters.pop(name, None) is not None:
            self._owner.on_lost(name)


# ---- Messages between actors that share a process ----------------------------------------------------------


Receive = Callable[[Any, str], None]
"""Called with a message and the name of the actor that sent it."""

_log = logging.getLogger("tandem")


class Bus:
    """The actors of one process, by name. One that has its process for itself is the only one on its bus.

    Invariant: at most one handler runs at a time, and what it sends is received after it has returned.
    """

    def __init__(self) -> None:
        self._members: dict[str, Receive] = {}
        self._messages: deque[tuple[str, str, Any]] = deque()  # sender, receiver, message
        self._unflushed: dict[DataPlane, None] = {}
        self._depth = 0  # batches within batches

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def join(self, name: str, receive: Receive) -> None:
        """Add an actor, or give it another receiver."""
        self._members[name] = receive

    def post(self, source: str, to: str, message: Any) -> None:
        """Hand a message to an actor of this process."""
        with self.batch():
            self._messages.append((source, to, message))

    def send(self, plane: DataPlane, to: str, frame: bytes) -> None:
        """Hand a frame for another process to a data plane."""
        with self.batch():
            plane.send(to, frame)
            self._unflushed[plane] = None

    def batch(self) -> Bus:
        """`with bus.batch():` delivers at the end what is sent within; one within another belongs to it.

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
