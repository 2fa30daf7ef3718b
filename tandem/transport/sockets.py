"""The data plane over asyncio sockets: Unix-domain within a node, one TCP connection across nodes.

TCP_NODELAY, mutual proof of the cluster's secret before the first frame, TLS where contexts are given; all frames
of one event-loop turn go out in one write. Knows nothing of what a frame says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import ssl
from collections import defaultdict
from typing import cast

from tandem.errors import ProtocolError
from tandem.transport.framing import FrameSplitter, join_frames
from tandem.transport.handshake import NONCE_BYTES, Greeting, is_proven, proof
from tandem.transport.port import Endpoint, LinkCounters, OnConnected, OnFrames, OnLost

RETRY_S = 0.5
"""Between attempts to connect."""
DIAL_LIMIT_S = 5.0
"""For one attempt: connection, TLS and proof. Whoever connects has as long for its proof."""
MAX_BUFFERED_BYTES = 1 << 20
"""Unsent bytes on one connection beyond which frames are dropped; the protocol resends them."""


class _Connection(asyncio.Protocol):
    """One connection, accepted or dialled: greeting, proof, then frames."""

    def __init__(self, plane: SocketPlane, dials: bool) -> None:
        self.plane = plane
        self.name: str | None = None  # of the other end, once proven
        self.proven: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter()
        self._greeting = Greeting(plane.name, secrets.token_bytes(NONCE_BYTES), dials)
        self._other: Greeting | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(
            asyncio.Transport, transport
        )  # uvloop's own classes are not derived from it
        handle = transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(join_frames([self._greeting.encode()]))
        self._deadline = asyncio.get_running_loop().call_later(DIAL_LIMIT_S, self.abort)
        self.plane.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
            while frames and self.name is None:
                self._prove(frames.pop(0))
        except ProtocolError as error:
            self.refuse(error)
            return
        if frames and self.name is not None:
            self.plane.received(self, self.name, frames, len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        if not self.proven.done():
            self.proven.set_exception(ConnectionError("the connection was closed before the proof"))
            self.proven.exception()  # mark as retrieved: an accepted connection has no waiter
        self.plane.disconnected(self)

    def refuse(self, error: ProtocolError) -> None:
        """Close; nothing more is read from this end."""
        if not self.proven.done():
            self.proven.set_exception(error)
            self.proven.exception()
        self.abort()

    def abort(self) -> None:
        """Drop the connection and what it still had to send."""
        if self.transport is not None:
            self.transport.abort()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _prove(self, frame: bytes) -> None:
        assert self.transport is not None
        if self._other is None:
            self._other = Greeting.decode(frame)
            self.transport.write(join_frames([proof(self.plane.secret, self._greeting, self._other)]))
            return
        if not is_proven(self.plane.secret, frame, self._greeting, self._other):
            raise ProtocolError(
                f"A connection must prove the cluster's secret, {self._other.name!r} did not; "
                "connect only actors of one cluster."
            )
        self._stop_deadline()
        self.name = self._other.name
        self.plane.proven(self, self.name)
        if not self.proven.done():
            self.proven.set_result(self.name)


class SocketPlane:
    """All connections of one actor."""

    def __init__(
        self,
        name: str,
        secret: bytes,
        on_frames: OnFrames,
        *,
        directory: str,
        on_connected: OnConnected = lambda name: None,
        on_lost: OnLost = lambda name: None,
        host: str | None = None,
        port: int = 0,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`directory` holds the Unix-domain sockets; `host` is given where other nodes connect to this actor."""
        self.name = name
        self.secret = secret
        self.counters: dict[str, LinkCounters] = defaultdict(LinkCounters)
        self._on_frames, self._on_connected, self._on_lost = on_frames, on_connected, on_lost
        self._unix_path = os.path.join(directory, name.replace("/", "-"))
        self._host, self._port = host, port
        self._server_tls, self._client_tls = server_tls, client_tls
        self._servers: list[asyncio.Server] = []
        self._endpoints: dict[str, Endpoint] = {}
        self._connections: dict[str, _Connection] = {}  # the newest to each actor
        self._dialled: dict[str, _Connection] = {}  # of those, the ones that this actor opened
        self._all: set[_Connection] = set()
        self._is_closed = False
        self._waiting: dict[str, list[bytes]] = {}  # frames of this event-loop turn
        self._dialling: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> Endpoint:
        """Listen on a Unix-domain socket and, where a host is given, on TCP."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._unix_path)
        self._servers.append(
            await loop.create_unix_server(lambda: _Connection(self, dials=False), self._unix_path)
        )
        os.chmod(self._unix_path, 0o600)
        if self._host is None:
            return Endpoint(self.name, self._unix_path)
        server = await loop.create_server(
            lambda: _Connection(self, dials=False), self._host, self._port, ssl=self._server_tls
        )
        self._servers.append(server)
        return Endpoint(self.name, self._unix_path, self._host, server.sockets[0].getsockname()[1])

    async def connect(self, endpoint: Endpoint) -> None:
        """Make an actor known and open a connection to it; retried until it stands."""
        self._endpoints[endpoint.name] = endpoint
        self.renew(endpoint.name)
        await asyncio.shield(self._dialling[endpoint.name])

    def send(self, to: str, frame: bytes) -> None:
        """Hand one frame over; it goes out with the others of this event-loop turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.setdefault(to, []).append(frame)

    def is_connected(self, to: str) -> bool:
        """Whether a proven connection to an actor stands."""
        return to in self._connections

    def renew(self, to: str) -> None:
        """Open another connection to a known actor, unless that is under way."""
        if to in self._endpoints and to not in self._dialling and not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._dial(self._endpoints[to]))
            self._dialling[to] = task
            task.add_done_callback(lambda _: self._dialling.pop(to, None))

    async def close(self) -> None:
        """Stop listening, drop all connections."""
        self._is_closed = True
        for task in list(self._dialling.values()):
            task.cancel()
        await asyncio.gather(*self._dialling.values(), return_exceptions=True)
        for server in self._servers:
            server.close()
        for connection in list(self._all):
            connection.abort()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._unix_path)
        await asyncio.sleep(0)

    # ---- called by connections -------------------------------------------------------------------------------

    def opened(self, connection: _Connection) -> None:
        """A connection stands, its other end yet unknown."""
        self._all.add(connection)

    def proven(self, connection: _Connection, name: str) -> None:
        """A connection may carry frames; it replaces an older one to the same actor for sending."""
        self._connections[name] = connection
        self.counters[name].connections += 1
        self._on_connected(name)

    def received(self, connection: _Connection, name: str, frames: list[bytes], num_bytes: int) -> None:
        """Frames arrived."""
        counters = self.counters[name]
        counters.received_frames += len(frames)
        counters.received_bytes += num_bytes
        self._on_frames(name, frames)

    def disconnected(self, connection: _Connection) -> None:
        """A connection broke; a known actor is dialled again."""
        self._all.discard(connection)
        name = connection.name
        if name is not None and self._connections.get(name) is connection:
            del self._connections[name]
            if not self._is_closed:
                self._on_lost(name)
                self.renew(name)

    # ---- private ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for name, frames in waiting.items():
            counters = self.counters[name]
            connection = self._connections.get(name)
            transport = None if connection is None else connection.transport
            if (
                transport is None
                or transport.is_closing()
                or transport.get_write_buffer_size() > MAX_BUFFERED_BYTES
            ):
                counters.dropped_frames += len(frames)
                self.renew(name)
                continue
            data = join_frames(frames)
            transport.write(data)
            counters.sent_frames += len(frames)
            counters.sent_bytes += len(data)
            counters.writes += 1

    async def _dial(self, endpoint: Endpoint) -> None:
        while True:
            try:
                async with asyncio.timeout(DIAL_LIMIT_S):
                    connection = await self._open(endpoint)
                    await connection.proven
                self._replace(endpoint.name, connection)
                return
            except (OSError, TimeoutError, ProtocolError):
                await asyncio.sleep(RETRY_S)

    def _replace(self, name: str, connection: _Connection) -> None:
        """Give up the connection that was opened before: it may hang for as long as TCP likes."""
        if (old := self._dialled.get(name)) is not None:
            old.abort()
        self._dialled[name] = connection

    async def _open(self, endpoint: Endpoint) -> _Connection:
        loop = asyncio.get_running_loop()
        is_remote = endpoint.name.split("/")[0] != self.name.split("/")[0]
        if endpoint.host is not None and endpoint.port is not None and is_remote:
            _, connection = await loop.create_connection(
                lambda: _Connection(self, dials=True), endpoint.host, endpoint.port, ssl=self._client_tls,
                server_hostname="" if self._client_tls else None,
            )  # fmt: skip
        else:
            assert endpoint.unix_path is not None
            _, connection = await loop.create_unix_connection(
                lambda: _Connection(self, dials=True), endpoint.unix_path
            )
        return connection


def tls_contexts(certificate: str, key: str, authority: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server, client) contexts for mutual TLS from PEM files; names are not checked, as in Ray's own TLS."""
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose, cafile=authority)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        contexts.append(context)
    return contexts[0], contexts[1]
