"""A TCP relay that can fall silent, as a link does that is lost without anybody closing it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tandem.sites.port import LoopThread

PIECE_BYTES = 65536
SLOW_PIECE_BYTES = 32
SLOW_BYTES_PER_S = 250
"""Of a link on which the second half of a short answer takes the cloud some four seconds."""


class Relay:
    """Passes bytes both ways, late by `delay_s`; while `hold` holds, none.

    Those who connected here get at most `bytes_per_s` of them, where that is set: then what they wait for is still
    on its way when somebody who looks at them has seen its beginning.
    """

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self._target = (host, port)
        self.delay_s = delay_s
        self.bytes_per_s: float | None = None
        self._flows: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = LoopThread()
        self.port: int = self._loop.run(self._start())

    async def _start(self) -> int:
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def hold(self) -> None:
        """From now on nothing arrives at either end."""
        self._loop.run(self._set(False))

    def release(self) -> None:
        """Everything arrives, what was held included."""
        self._loop.run(self._set(True))

    async def _set(self, flows: bool) -> None:
        assert self._flows is not None
        if flows:
            self._flows.set()
        else:
            self._flows.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer_reader, peer_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        for source, sink, is_answer in ((reader, peer_writer, False), (peer_reader, writer, True)):
            task = asyncio.create_task(self._pass(source, sink, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        assert self._flows is not None
        with suppress(ConnectionError):
            while piece := await source.read(PIECE_BYTES):
                await asyncio.sleep(self.delay_s)
                while piece:
                    size = len(piece)
                    if is_answer and self.bytes_per_s is not None:
                        size = SLOW_PIECE_BYTES
                        await asyncio.sleep(size / self.bytes_per_s)
                    await self._flows.wait()
                    sink.write(piece[:size])
                    await sink.drain()
                    piece = piece[size:]
        sink.close()

    def close(self) -> None:
        """Close all connections."""
        self._loop.run(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextmanager
def relayed(host: str, port: int, delay_s: float) -> Iterator[Relay]:
    """A relay to that address, closed at the end."""
    relay = Relay(host, port, delay_s)
    try:
        yield relay
    finally:
        relay.release()
        relay.close()
