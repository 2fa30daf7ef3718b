"""One connection of the socket data plane, accepted or dialled: a handshake, then frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Protocol, cast

from tandem.errors import ProtocolError
from tandem.protocol.wire import MAX_FRAME_BYTES
from tandem.transport.framing import FrameSplitter, join_frames
from tandem.transport.handshake import Handshake, Refusal

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""After 10 s without a packet TCP asks every 5 s; a host that vanished is noticed after 25 s."""
VANISHED_MS = 25_000
"""Where bytes are under way to it TCP does not ask, but repeats them for a quarter of an hour. The end that accepts
gives up after the same time, so that a device's link is free again; the end that dials tries again by itself."""


class ConnectionOwner(Protocol):
    """What a connection needs of its data plane."""

    def opened(self, connection: Connection) -> None:
        """There is a connection; the other end is still unknown."""

    def proven(self, connection: Connection, name: str) -> None:
        """The other end has proven that it is the actor `name`."""

    def received(self, connection: Connection, frames: list[bytes], num_bytes: int) -> None:
        """Bytes of a proven connection arrived, and completed these frames, perhaps none."""

    def disconnected(self, connection: Connection) -> None:
        """The connection broke."""


class Connection(asyncio.Protocol):
    """A handshake, then frames. Until the other end is known only the small frames of the handshake are accepted."""

    def __init__(self, owner: ConnectionOwner, handshake: Handshake, *, dials: bool, limit_s: float) -> None:
        """dials: whether this end opened it; limit_s: for the handshake."""
        self.dials = dials
        self.name: str | None = None  # of the other end, once proven
        self.proven: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._owner = owner
        self._handshake = handshake
        self._limit_s = limit_s
        self._splitter = FrameSplitter(handshake.max_frame_bytes)
        self._deadline: asyncio.TimerHandle | None = None
        self._resuming: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; it has to end within the limit."""
        # uvloop's own classes are not derived from asyncio's
        self.transport = transport = cast(asyncio.Transport, transport)
        handle = transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            _set_options(handle, dials=self.dials)
        self._deadline = asyncio.get_running_loop().call_later(self._limit_s, self.abort)
        self._owner.opened(self)
        try:
            self._write(self._handshake.begin(_certificate_of(transport)))
        except ProtocolError as error:
            self.refuse(error)

    def data_received(self, data: bytes) -> None:
        """Handshake first, then frames."""
        num_bytes = len(data)
        try:
            self._splitter.append(data)
            while self.name is None and (frame := self._splitter.take()) is not None:
                frames, name = self._handshake.receive(frame)
                self._write(frames)
                if name is not None:
                    self._prove(name)
                    num_bytes = self._splitter.num_buffered
            frames = self._splitter.take_all() if self.name is not None else []
        except ProtocolError as error:
            self.refuse(error)
            return
        if num_bytes and self.name is not None:
            self._owner.received(self, frames, num_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever closed."""
        self._stop_deadline()
        if self._resuming is not None:
            self._resuming.cancel()
        self._fail_proof(ConnectionError("the connection was closed before the proof"))
        self._owner.disconnected(self)

    def refuse(self, error: ProtocolError) -> None:
        """Close; nothing more is read from this end. It is told why where the handshake has words for it."""
        self._fail_proof(error)
        if isinstance(error, Refusal) and self.transport is not None:
            self._write([error.frame])
            self.transport.close()  # the deadline still aborts it if the words do not leave
        else:
            self.abort()

    def pause(self, duration_s: float) -> None:
        """Read nothing for a while, so that the other end has to wait: what it sends stays in TCP's buffers."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._resuming is not None:
            self._resuming.cancel()
        self.transport.pause_reading()
        self._resuming = asyncio.get_running_loop().call_later(duration_s, self._resume)

    def abort(self) -> None:
        """Drop the connection and what it still had to send."""
        if self.transport is not None:
            self.transport.abort()

    def _resume(self) -> None:
        self._resuming = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _fail_proof(self, error: Exception) -> None:
        if not self.proven.done():
            self.proven.set_exception(error)
            self.proven.exception()  # mark as retrieved: an accepted connection has no waiter

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _write(self, frames: list[bytes]) -> None:
        if frames and self.transport is not None:
            self.transport.write(join_frames(frames))

    def _prove(self, name: str) -> None:
        self._stop_deadline()
        self._splitter.max_frame_bytes = MAX_FRAME_BYTES
        self.name = name
        self._owner.proven(self, name)
        if not self.proven.done():
            self.proven.set_result(name)


def _certificate_of(transport: asyncio.Transport) -> bytes | None:
    """What the other end showed in TLS, as DER."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert(binary_form=True)


def _set_options(handle: socket.socket, *, dials: bool) -> None:
    """Send small frames at once, and notice a host that vanished without a word."""
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    limits = KEEPALIVE if dials else {**KEEPALIVE, "TCP_USER_TIMEOUT": VANISHED_MS}
    for name, value in limits.items():
        with contextlib.suppress(AttributeError):  # other systems lack some of them
            handle.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
