"""The data plane over asyncio sockets: Unix-domain within a node, one TCP connection across nodes.

TCP_NODELAY, a handshake before the first frame, TLS where contexts are given; all frames handed over before a `flush`
go out in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections import defaultdict

from tandem.transport.accepting import Door
from tandem.transport.connection import Connection
from tandem.transport.dialling import Dialling
from tandem.transport.framing import join_frames
from tandem.transport.handshake import NewHandshake
from tandem.transport.history import DialHistory
from tandem.transport.port import Endpoint, LinkCounters, OnConnected, OnFrames, OnLost
from tandem.transport.rate import RateLimits
from tandem.transport.unix_paths import bind, shorten

DIAL_LIMIT_S = 5.0
"""For one attempt: connection, TLS and proof. An end that connects has as long for each of its steps."""
MAX_UNPROVEN = 64
"""Accepted connections in their handshake; the oldest makes room for the next."""
MAX_BUFFERED_BYTES = 1 << 20
"""Unsent bytes on one connection beyond which frames are dropped; the protocol resends them."""


class SocketPlane:
    """All connections of one actor."""

    def __init__(
        self,
        name: str,
        on_frames: OnFrames,
        *,
        handshake: NewHandshake,
        directory: str | None = None,
        on_connected: OnConnected = lambda name: None,
        on_lost: OnLost = lambda name: None,
        host: str | None = None,
        port: int = 0,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        max_bytes_per_s: int | None = None,
    ) -> None:
        """directory: of the Unix-domain sockets, None: this actor is alone at its site; host: where other nodes connect
        to it, None: nowhere; max_bytes_per_s: read from any one actor, however many its connections, None: no limit.
        """
        self.name = name
        self._new_handshake = handshake
        self.counters: dict[str, LinkCounters] = defaultdict(LinkCounters)
        self._on_frames, self._on_connected, self._on_lost = on_frames, on_connected, on_lost
        self._unix_path = None if directory is None else os.path.join(directory, name.replace("/", "-"))
        self._host, self.port = host, port  # the port is known after `start`
        self._server_tls, self._client_tls = server_tls, client_tls
        self._servers: list[asyncio.Server] = []
        self._door: Door | None = None  # for other nodes
        self._num_unproven = 0  # accepted connections that ended without a proof
        self._endpoints: dict[str, Endpoint] = {}
        self._connections: dict[str, Connection] = {}  # the newest to each actor
        self._dialled: dict[str, Connection] = {}  # of those, the ones that this actor opened
        self._accepted: dict[str, Connection] = {}  # and the ones that the other actor opened
        self._all: dict[Connection, None] = {}  # oldest first
        self._is_closed = False
        self._waiting: dict[str, list[bytes]] = {}  # frames until the next flush
        self._dialling: dict[str, tuple[Dialling, asyncio.Task[None]]] = {}
        self._rates = RateLimits(max_bytes_per_s)
        self._histories: dict[str, DialHistory] = {}  # of actors that this one dials

    async def start(self) -> Endpoint:
        """Listen on a Unix-domain socket and, where a host is given, on TCP."""
        if self._unix_path is not None:
            listener, loop = bind(self._unix_path), asyncio.get_running_loop()
            self._servers.append(await loop.create_unix_server(self._accept_local, sock=listener))
        if self._host is None:
            return Endpoint(self.name, self._unix_path)
        self._door = Door(self._accept_remote, self._server_tls, DIAL_LIMIT_S, MAX_UNPROVEN)
        self.port = await self._door.start(self._host, self.port)
        return Endpoint(self.name, self._unix_path, self._host, self.port)

    async def connect(self, endpoint: Endpoint) -> None:
        """Make an actor known and open a connection to it; retried until there is one.

        ProtocolError if what answers there refuses this actor, or is not what it should be.
        """
        self._endpoints[endpoint.name] = endpoint
        self.renew(endpoint.name)
        await asyncio.shield(self._dialling[endpoint.name][1])

    def send(self, to: str, frame: bytes) -> None:
        """Hand one frame over; it goes out with the next `flush`."""
        self._waiting.setdefault(to, []).append(frame)

    def flush(self) -> None:
        """Write what was handed over; what cannot be written is dropped, and the protocol resends it."""
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

    def is_connected(self, to: str) -> bool:
        """Whether there is a proven connection to an actor."""
        return to in self._connections

    def refusal_of(self, to: str) -> str | None:
        """With what sentence an actor has refused this one since there last was a connection, if it has."""
        refusal = self._history(to).refusal
        return None if refusal is None else str(refusal)

    def connection_to(self, name: str) -> Connection | None:
        """The connection that frames for an actor go out on."""
        return self._connections.get(name)

    @property
    def connected_names(self) -> tuple[str, ...]:
        """The actors to which there is a proven connection."""
        return tuple(self._connections)

    def drop(self, name: str) -> None:
        """Close all connections of an actor at once."""
        for connection in [each for each in self._all if each.name == name]:
            connection.abort()

    @property
    def num_connections(self) -> int:
        """Open connections, proven or not."""
        return len(self._all) + (self._door.num_shaking if self._door else 0)

    @property
    def num_turned_away(self) -> int:
        """Accepted connections that ended before the other end had proven who it is."""
        return self._num_unproven + (self._door.num_failed if self._door else 0)

    def renew(self, to: str) -> None:
        """Open another connection to a known actor; where that is in progress, hurry."""
        if to in self._dialling:
            self._dialling[to][0].hurry()
        elif to in self._endpoints and not self._is_closed:
            history = self._history(to)
            dialling = Dialling(lambda: self._attempt(to), history.refused, history.begin())
            task = asyncio.get_running_loop().create_task(self._dial(to, dialling))
            self._dialling[to] = dialling, task
            task.add_done_callback(lambda task: self._finish_dial(to, task))

    async def close(self) -> None:
        """Stop listening, drop all connections."""
        self._is_closed = True
        tasks = [task for _, task in self._dialling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            server.close()
        if self._door is not None:
            await self._door.close()
        for connection in list(self._all):
            connection.abort()
        if self._unix_path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._unix_path)
        await asyncio.sleep(0)

    # ---- called by connections -------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """There is a connection; the other end is still unknown."""
        self._all[connection] = None
        unproven = [other for other in self._all if other.name is None and not other.dials]
        if len(unproven) > MAX_UNPROVEN:
            unproven[0].abort()

    def proven(self, connection: Connection, name: str) -> None:
        """A connection may carry frames; it replaces an older one to the same actor."""
        self._connections[name] = connection
        if connection.dials:
            self._history(name).opened(asyncio.get_running_loop().time())
        else:
            self._replace(self._accepted, name, connection)
        self.counters[name].connections += 1
        self._on_connected(name)

    def received(self, connection: Connection, frames: list[bytes], num_bytes: int) -> None:
        """Bytes of a proven connection arrived, and completed these frames, perhaps none."""
        assert connection.name is not None
        counters = self.counters[connection.name]
        counters.received_frames += len(frames)
        counters.received_bytes += num_bytes
        if pause_s := self._rates.take(connection.name, num_bytes, asyncio.get_running_loop().time()):
            counters.pauses += 1
            connection.pause(pause_s)
        if frames:
            self._on_frames(connection.name, frames)

    def disconnected(self, connection: Connection) -> None:
        """A connection broke; a known actor is dialled again."""
        self._all.pop(connection, None)
        name = connection.name
        self._num_unproven += name is None and not connection.dials
        for ends in (self._dialled, self._accepted):
            if name is not None and ends.get(name) is connection:
                del ends[name]
        if name is not None and self._connections.get(name) is connection:
            del self._connections[name]
            if not self._is_closed:
                self._on_lost(name)
                if connection.dials:
                    self._history(name).lost(asyncio.get_running_loop().time())
                self.renew(name)

    # ---- private ---------------------------------------------------------------------------------------------

    def _accept_local(self) -> Connection:
        return self._new_connection(dials=False, crosses_sites=False)

    def _accept_remote(self) -> Connection:
        return self._new_connection(dials=False, crosses_sites=True)

    def _new_connection(self, *, dials: bool, crosses_sites: bool) -> Connection:
        return Connection(self, self._new_handshake(dials, crosses_sites), dials=dials, limit_s=DIAL_LIMIT_S)

    async def _dial(self, name: str, dialling: Dialling) -> None:
        self._replace(self._dialled, name, await dialling.run())

    def _history(self, name: str) -> DialHistory:
        return self._histories.setdefault(name, DialHistory(self.name, name))

    async def _attempt(self, name: str) -> Connection:
        """One attempt at the newest address: an actor may have been replaced."""
        connection = None
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                connection = await self._open(self._endpoints[name])
                await connection.proven
                return connection
        except BaseException:
            if connection is not None:
                connection.abort()
            raise

    def _finish_dial(self, name: str, task: asyncio.Task[None]) -> None:
        self._dialling.pop(name, None)
        has_failed = task.cancelled() or task.exception() is not None  # asked for: often nobody waits
        if not has_failed and name not in self._connections:  # it broke before the dialling had ended
            self.renew(name)

    def _replace(self, ends: dict[str, Connection], name: str, connection: Connection) -> None:
        """Drop the connection that was there before: it may hang for as long as TCP likes."""
        old, ends[name] = ends.get(name), connection
        if old is not None and old is not connection:
            old.abort()

    async def _open(self, endpoint: Endpoint) -> Connection:
        loop = asyncio.get_running_loop()
        is_remote = endpoint.unix_path is None or endpoint.name.split("/")[0] != self.name.split("/")[0]
        if endpoint.host is not None and endpoint.port is not None and is_remote:
            _, connection = await loop.create_connection(
                lambda: self._new_connection(dials=True, crosses_sites=True),
                endpoint.host,
                endpoint.port,
                ssl=self._client_tls,
                server_hostname="" if self._client_tls else None,
            )
            return connection
        assert endpoint.unix_path is not None
        with shorten(endpoint.unix_path) as path:
            _, connection = await loop.create_unix_connection(
                lambda: self._new_connection(dials=True, crosses_sites=False), path
            )
        return connection
