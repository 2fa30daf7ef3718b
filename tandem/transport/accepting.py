"""Accepting connections over TCP, of which only so many may be in the handshake of TLS at once.

asyncio's own servers know no such bound, and each of their handshakes holds a quarter of a megabyte: whoever connects
and then says nothing could fill the memory, and use up all file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

_log = logging.getLogger("tandem")
ACCEPT_RETRY_S = 0.1
"""Pause where the system has no file descriptor left."""
BACKLOG = 128


class Door:
    """A listening port; its connections get a protocol, with TLS once that has been agreed on."""

    def __init__(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
        limit_s: float,
        max_shaking: int,
    ) -> None:
        """context: None for no TLS; limit_s: for its handshake; max_shaking: connections in it, at most: the oldest
        makes room for the next.
        """
        self.num_failed = 0  # connections that did not get through TLS
        self._new_protocol = new_protocol
        self._context = context
        self._limit_s = limit_s
        self._max_shaking = max_shaking
        self._shaking: dict[asyncio.Task[None], None] = {}  # oldest first
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def num_shaking(self) -> int:
        """Connections in the handshake of TLS."""
        return len(self._shaking)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._listeners.append(_listen(family, (address[0], port, *address[2:])))
                port = self._listeners[-1].getsockname()[1]  # all addresses of a name share one
        except OSError:
            await self.close()
            raise
        self._accepting = [loop.create_task(self._accept(listener)) for listener in self._listeners]
        return port

    async def close(self) -> None:
        """Stop listening, and drop the connections that are in their handshake."""
        tasks = [*self._accepting, *self._shaking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("No connection can be accepted now (%s).", error.strerror)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            task = loop.create_task(self._shake(connection))
            self._shaking[task] = None
            task.add_done_callback(partial(self._finish, connection))
            if len(self._shaking) > self._max_shaking:
                next(iter(self._shaking)).cancel()

    async def _shake(self, connection: socket.socket) -> None:
        """TLS, and then it is up to the protocol."""
        await asyncio.get_running_loop().connect_accepted_socket(
            self._new_protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=self._limit_s if self._context else None,
        )

    def _finish(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Whoever did not get through is dropped and counted; a task may be cancelled before it has begun."""
        del self._shaking[task]
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.num_failed += 1
            connection.close()
        if error is not None and not isinstance(error, OSError):
            _log.error("A connection could not be accepted.", exc_info=error)


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(AttributeError, OSError):
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
