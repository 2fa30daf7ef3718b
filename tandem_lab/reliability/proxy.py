"""A TCP relay between a device and a cloud whose link can be cut and healed, in a thread of its own.

A cut in the way of `stall` loses what is under way for good: connections of before and during the cut stay silent for
ever, as over a route that has changed, and only new ones get through afterwards. `reset` closes them instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Literal

from tandem.sites.port import LoopThread

Cut = Literal["stall", "reset"]
CHUNK_BYTES = 1 << 16


class Relay:
    """One listening port, relayed to another one of this machine."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._cut: Cut | None = None
        self._open: list[Pipe] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self, how: Cut) -> None:
        """From now on nothing gets through."""
        self._cut = how
        for pipe in self._open:
            pipe.is_dead = True
            if how == "reset":
                pipe.abort()

    async def heal(self) -> None:
        """New connections get through again."""
        self._cut = None

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for pipe in list(self._open):
            pipe.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut == "reset":
            writer.transport.abort()
            return
        pipe = Pipe(writer, is_dead=self._cut is not None)
        self._open.append(pipe)
        try:
            await pipe.run(reader, self.target_port)
        except OSError:
            pass
        finally:
            self._open.remove(pipe)
            pipe.abort()


class Pipe:
    """One relayed connection."""

    def __init__(self, writer: asyncio.StreamWriter, *, is_dead: bool) -> None:
        self.is_dead = is_dead
        self._writers = [writer]

    async def run(self, reader: asyncio.StreamReader, port: int) -> None:
        """Until either end closes; a dead one swallows what it gets."""
        if self.is_dead:
            while await reader.read(CHUNK_BYTES):
                pass
            return
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(other_writer)
        directions = [self._copy(reader, other_writer), self._copy(other_reader, self._writers[0])]
        tasks = [asyncio.create_task(direction) for direction in directions]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """Close both ends at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if not self.is_dead:
                writer.write(data)
                await writer.drain()


class Link:
    """A relay, used from a thread without an event loop."""

    def __init__(self, loop: LoopThread, relay: Relay) -> None:
        self._loop = loop
        self._relay = relay

    @property
    def port(self) -> int:
        """That devices dial."""
        return self._relay.port

    def cut(self, how: Cut) -> None:
        """From now on nothing gets through."""
        self._loop.run(self._relay.cut(how))

    def heal(self) -> None:
        """New connections get through again."""
        self._loop.run(self._relay.heal())


@contextlib.contextmanager
def relayed(target_port: int) -> Iterator[Link]:
    """A link to a port of this machine that can be cut."""
    loop, relay = LoopThread(), Relay(target_port)
    try:
        loop.run(relay.start())
        yield Link(loop, relay)
        loop.run(relay.stop())
    finally:
        loop.close()
