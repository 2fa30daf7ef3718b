"""The data plane over asyncio sockets: Unix-domain within a node, one TCP connection across nodes.

TCP_NODELAY, a handshake before the first frame, TLS where contexts are given; all frames handed over before a `flush`
go out in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, cast

from tandem.errors import ProtocolError, TandemError
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.system.addresses import client_of, find_surplus
from tandem.transport.port import (
    DataPlane,
    Endpoint,
    FrameSplitter,
    Handshake,
    NewHandshake,
    PlaneOwner,
    Refusal,
    Refused,
    join_frames,
)

# ---- One connection of the socket data plane, accepted or dialled ------------------------------------------


KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""After 10 s without a packet TCP asks every 5 s; a host that vanished is noticed after 25 s."""
VANISHED_MS = 25_000
"""Where bytes are under way to it TCP does not ask, but repeats them for a quarter of an hour. The end that accepts
gives up after the same time, so that a device's link is free again; the end that dials tries again anyway."""


class Connection(asyncio.Protocol):
    """A handshake, then frames. Until the other end is known only the small frames of the handshake are accepted."""

    def __init__(self, plane: SocketPlane, handshake: Handshake, *, dials: bool, limit_s: float) -> None:
        """dials: whether this end opened it; limit_s: for each frame of the handshake."""
        self.dials = dials
        self.name: str | None = None  # of the other end, once proven
        self.proven: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self.client = ""  # where one comes from that was accepted; empty within the node
        # of one that was accepted, until TLS has been agreed on, where there is a context
        self.accepting: asyncio.Task[Any] | None = None
        self._plane = plane
        self._handshake = handshake
        self._limit_s = limit_s
        self._splitter = FrameSplitter(handshake.max_frame_bytes)
        self._deadline: asyncio.TimerHandle | None = None
        self._resuming: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # uvloop's own classes are not derived from asyncio's
        self.transport = transport = cast(asyncio.Transport, transport)
        if self.accepting is not None and self.accepting.cancelling():
            transport.abort()
            return
        handle = transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            _set_options(handle, dials=self.dials)
        self._limit_handshake()
        self._plane.opened(self)
        try:
            self._write(self._handshake.begin(_certificate_of(transport)))
        except ProtocolError as error:
            self.refuse(error)

    def data_received(self, data: bytes) -> None:
        """Handshake first, then frames."""
        num_bytes = len(data)
        try:
            self._splitter.append(data)
            while self.name is None and (frames := self._splitter.take(1)):
                answers, name = self._handshake.receive(frames[0])
                self._limit_handshake()
                self._write(answers)
                if name is not None:
                    self._prove(name)
                    num_bytes = self._splitter.num_buffered
            frames = self._splitter.take() if self.name is not None else []
        except ProtocolError as error:
            self.refuse(error)
            return
        if num_bytes and self.name is not None:
            self._plane.received(self, frames, num_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever closed."""
        for timer in (self._deadline, self._resuming):
            if timer is not None:
                timer.cancel()
        self._fail_proof(ConnectionError("the connection was closed before the proof"))
        self._plane.disconnected(self)

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
        elif self.accepting is not None:
            self.accepting.cancel()

    def _resume(self) -> None:
        self._resuming = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _limit_handshake(self) -> None:
        """Allow the other end so long for its next frame."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(self._limit_s, self.abort)

    def _fail_proof(self, error: Exception) -> None:
        if not self.proven.done():
            self.proven.set_exception(error)
            self.proven.exception()  # mark as retrieved: an accepted connection has no waiter

    def _write(self, frames: list[bytes]) -> None:
        if frames and self.transport is not None:
            self.transport.write(join_frames(frames))

    def _prove(self, name: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._splitter.max_frame_bytes = MAX_FRAME_BYTES
        self.name = name
        self._plane.proven(self, name)
        if not self.proven.done():
            self.proven.set_result(name)


def _certificate_of(transport: asyncio.Transport) -> bytes | None:
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


# ---- Opening a connection to an actor that may be away for a while -----------------------------------------


_log = logging.getLogger("tandem")
RETRY_S = 0.5
"""Between the beginnings of two attempts where the first has failed and somebody waits for the connection."""
MAX_RETRY_S = 8.0
"""Longest time between the beginnings of two attempts, which doubles while nobody waits."""
MAX_HANGING_S = 1.5
"""Longest time between the beginnings of two attempts while somebody waits and earlier ones hang, which doubles with
each of these: TCP repeats each on its own, and many together fill a link of 10 kbit/s. Below the 2 s after which the
parties are together again once a link is back."""
MAX_ATTEMPTS = 4
"""That are under way at once: as many as begin within the time that one may take, so that there is always a new one."""
MAX_REFUSALS = 3
"""Attempts in a row that may be refused for good before an actor that was never reached is given up."""
BRIEF_S = 10.0
"""A connection that lived for less counts as a failed attempt, except for the first in a row: a link may break twice.
Longer than MAX_RETRY_S: two ends that replace each other would otherwise start over at every turn."""

Attempt = Callable[[], Coroutine[Any, Any, Connection]]
"""One attempt at a proven connection; raises OSError, TimeoutError or ProtocolError."""


class Dialler:
    """Connections to one actor that this end opens, and what became of earlier ones.

    An attempt does not wait for the end of the one before: what was sent into a link that was cut is repeated by TCP
    after ever longer pauses, while the link may be back. An end that says when to come back is not asked before.
    """

    def __init__(self, own: str, name: str, attempt: Attempt) -> None:
        """own, name: of this actor and of the other one."""
        self.refusal: ProtocolError | None = None  # the latest since there was a connection
        self._own, self._name, self._attempt = own, name, attempt
        self._has_met = False
        self._num_brief = 0  # connections in a row
        self._opened_s = -inf
        # Since dialling began:
        self._num_refusals = 0  # for good
        self._num_unawaited = 0  # attempts since somebody waited
        self._not_before_s = -inf  # as the other end said
        self._begun_s = -inf  # of the latest attempt
        self._attempts: set[asyncio.Task[Connection]] = set()

    def hurry(self) -> None:
        """Somebody waits: try again soon, and often."""
        self._num_unawaited = min(self._num_unawaited, 1)

    def opened(self, now_s: float) -> None:
        """There is a connection."""
        self.refusal, self._has_met, self._opened_s = None, True, now_s

    def lost(self, now_s: float) -> None:
        """The connection broke, and no other one had replaced it."""
        self._num_brief = self._num_brief + 1 if now_s - self._opened_s < BRIEF_S else 0

    async def run(self) -> Connection:
        """The first connection that an attempt opens. Raises ProtocolError to give up; see MAX_REFUSALS."""
        self._num_refusals, self._not_before_s = 0, -inf
        self._num_unawaited = max(0, self._num_brief - 1)
        self._begun_s = asyncio.get_running_loop().time() if self._num_unawaited else -inf
        try:
            while (connection := await self._round()) is None:
                pass
            return connection
        finally:
            attempts, self._attempts = self._attempts, set()
            for task in attempts:
                task.cancel()
            for late in await asyncio.gather(*attempts, return_exceptions=True):
                if isinstance(late, Connection):
                    late.abort()

    def _pause_s(self) -> float:
        unawaited_s = RETRY_S * 2.0 ** min(self._num_unawaited - 1, 10)
        hanging_s = RETRY_S * 2.0 ** len(self._attempts)
        return max(min(unawaited_s, MAX_RETRY_S), min(hanging_s, MAX_HANGING_S))

    async def _round(self) -> Connection | None:
        """Begin an attempt where one is due; wait for a result, but no longer than RETRY_S."""
        loop = asyncio.get_running_loop()
        due_s = max(self._begun_s + self._pause_s(), self._not_before_s)
        if (now_s := loop.time()) >= due_s and len(self._attempts) < MAX_ATTEMPTS:
            self._attempts.add(loop.create_task(self._attempt()))
            self._begun_s = now_s
            self._num_unawaited += 1
        end_s = now_s + RETRY_S
        while self._attempts and (left_s := end_s - loop.time()) > 0:
            done, self._attempts = await asyncio.wait(
                self._attempts, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            opened = [connection for task in done if (connection := self._result(task)) is not None]
            if opened:
                return opened[-1]
        await asyncio.sleep(max(0.0, end_s - loop.time()))
        return None

    def _result(self, task: asyncio.Task[Connection]) -> Connection | None:
        try:
            with contextlib.suppress(OSError, TimeoutError):
                return task.result()
        except ProtocolError as error:
            self._refuse(error)
        return None

    def _refuse(self, error: ProtocolError) -> None:
        """The other actor refused this one, or is not what it should be; raises `error` to give up."""
        pause_s = error.retry_after_s if isinstance(error, Refused) else None
        if self.refusal is None:
            level = logging.ERROR if pause_s is None else logging.INFO
            _log.log(level, "%s cannot connect to %s: %s", self._own, self._name, error)
        self.refusal = error
        if pause_s is not None:
            self._not_before_s = asyncio.get_running_loop().time() + pause_s
            return
        self._num_refusals += 1
        if self._num_refusals == MAX_REFUSALS and not self._has_met:
            raise error


# ---- A token bucket: how many bytes per second one end of a link may send ----------------------------------


class TokenBucket:
    """Fills at a rate, up to what it holds in a second; what is taken beyond that has to be waited for."""

    __slots__ = ("_at_s", "_bytes_per_s", "_level")

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._level = bytes_per_s  # bytes; below 0: taken in advance
        self._at_s: float | None = None

    def take(self, num_bytes: int, now_s: float) -> float:
        """Take bytes that have come; for how long nothing more may be read then, in seconds (0: not at all)."""
        since_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        filled = min(self._bytes_per_s, self._level + since_s * self._bytes_per_s)
        self._level = filled - num_bytes
        return max(0.0, -self._level / self._bytes_per_s)


# ---- Unix-domain sockets in folders with long paths --------------------------------------------------------


MAX_PATH_BYTES = 107
"""Longest path of a Unix-domain socket on Linux."""


@contextlib.contextmanager
def shorten(path: str) -> Iterator[str]:
    """An address for the socket at `path` that is short enough, valid within the context.

    TandemError where the system offers none.
    """
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{descriptor}/{name}"
        if not os.path.isdir(os.path.dirname(short)) or len(os.fsencode(short)) > MAX_PATH_BYTES:
            raise TandemError(
                f"The path of a socket has at most {MAX_PATH_BYTES} bytes (got {len(os.fsencode(path))}: {path!r}); "
                "set TMPDIR to a shorter folder."
            )
        yield short
    finally:
        os.close(descriptor)


def bind(unix_path: str) -> socket.socket:
    """A socket at a path of the Unix domain, for this user alone; a stale one is replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unix_path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        with shorten(unix_path) as path:
            listener.bind(path)
        os.chmod(unix_path, 0o600)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


# ---- All connections of an actor ---------------------------------------------------------------------------


ACCEPT_RETRY_S = 0.1
"""Pause where the system has no file descriptor left."""
BACKLOG = 128
MAX_UNPROVEN = 128
"""Accepted connections in their handshakes; where there are more, the oldest of the client with most of them goes."""
DIAL_LIMIT_S = 5.0
"""For one attempt: connection, TLS and proof. An end that connects has as long for each of its steps."""
MAX_BUFFERED_BYTES = 1 << 20
"""Unsent bytes on one connection beyond which frames are dropped; the protocol resends them."""


@dataclass(slots=True)
class _Peer:
    """What an actor knows of another one."""

    dialler: Dialler
    bucket: TokenBucket | None  # of what the other one sends, however many its connections; None: no limit
    endpoint: Endpoint | None = None  # None: it is not dialled
    dialling: asyncio.Task[None] | None = None  # under way
    newest: Connection | None = None  # that frames go out on
    dialled: Connection | None = None  # the newest that this end opened
    accepted: Connection | None = None  # and that the other one opened


class SocketPlane(DataPlane):
    """All connections of one actor."""

    def __init__(
        self,
        owner: PlaneOwner,
        *,
        handshake: NewHandshake,
        directory: str | None = None,
        host: str | None = None,
        port: int = 0,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        max_bytes_per_s: int | None = None,
    ) -> None:
        """directory: of the Unix-domain sockets, None: this actor is alone at its site; host: where other nodes connect
        to it, None: nowhere; max_bytes_per_s: read from any one actor, however many its connections, None: no limit.
        """
        super().__init__(owner)
        self._new_handshake = handshake
        self._client_tls = client_tls
        self._max_bytes_per_s = max_bytes_per_s
        self._path = None if directory is None else os.path.join(directory, owner.name.replace("/", "-"))
        self._host, self._server_tls = host, server_tls
        self.port = port  # after `start` the one it got
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self.num_turned_away = 0  # accepted connections that ended before the other end had proven who it is
        self._peers: dict[str, _Peer] = {}
        self._all: dict[Connection, None] = {}  # oldest first
        self._is_closed = False

    async def start(self) -> Endpoint:
        """Listen on a Unix-domain socket and, where a host is given, on TCP. Raises OSError."""
        try:
            if self._path is not None:
                self._listen(bind(self._path), crosses_sites=False)
            if self._host is None:
                return Endpoint(self._owner.name, self._path)
            addresses = await asyncio.get_running_loop().getaddrinfo(
                self._host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(addresses):
                at = (address[0], self.port, *address[2:])
                listener = socket.create_server(at, family=socket.AddressFamily(family))
                self.port = listener.getsockname()[1]  # all addresses of a name share one
                self._listen(listener, crosses_sites=True)
        except OSError:
            await self._stop_listening()
            raise
        return Endpoint(self._owner.name, self._path, self._host, self.port)

    async def connect(self, endpoint: Endpoint) -> None:
        """Make an actor known and open a connection to it; retried until there is one.

        ProtocolError if what answers there refuses this actor, or is not what it should be.
        """
        peer = self._peer(endpoint.name)
        peer.endpoint = endpoint
        self.renew(endpoint.name)
        assert peer.dialling is not None
        await asyncio.shield(peer.dialling)

    def _write(self, name: str, data: bytes) -> bool:
        connection = self.connection_to(name)
        transport = None if connection is None else connection.transport
        if (
            transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size() > MAX_BUFFERED_BYTES
        ):
            self.renew(name)
            return False
        transport.write(data)
        return True

    def is_connected(self, to: str) -> bool:
        """Whether there is a proven connection to an actor."""
        return self.connection_to(to) is not None

    def refusal_of(self, to: str) -> str | None:
        """The sentence with which an actor has refused this one since the last connection, if any."""
        refusal = self._peer(to).dialler.refusal
        return None if refusal is None else str(refusal)

    def connection_to(self, name: str) -> Connection | None:
        """The connection that frames for an actor go out on."""
        return self._peer(name).newest

    @property
    def connected_names(self) -> tuple[str, ...]:
        """The actors to which there is a proven connection."""
        return tuple(name for name, peer in self._peers.items() if peer.newest is not None)

    def drop(self, name: str) -> None:
        """Close all connections of an actor at once."""
        for connection in [each for each in self._all if each.name == name]:
            connection.abort()

    @property
    def num_connections(self) -> int:
        """Open connections, proven or not."""
        return len(self._all)

    def renew(self, to: str) -> None:
        """Open another connection to a known actor; where that is in progress, hurry."""
        peer = self._peer(to)
        if peer.dialling is not None:
            peer.dialler.hurry()
        elif peer.endpoint is not None and not self._is_closed:
            peer.dialling = asyncio.get_running_loop().create_task(self._dial(peer))
            peer.dialling.add_done_callback(lambda task: self._finish_dial(to, task))

    async def close(self) -> None:
        """Stop listening, drop all connections."""
        self._is_closed = True
        tasks = [peer.dialling for peer in self._peers.values() if peer.dialling is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop_listening()
        for connection in list(self._all):
            connection.abort()
        await asyncio.sleep(0)

    # ---- called by connections -------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """There is a connection; the other end is still unknown."""
        self._all[connection] = None

    def proven(self, connection: Connection, name: str) -> None:
        """A connection may carry frames; it replaces an older one to the same actor."""
        peer = self._peer(name)
        peer.newest = connection
        if connection.dials:
            peer.dialler.opened(asyncio.get_running_loop().time())
        else:
            _drop(peer.accepted, connection)
            peer.accepted = connection
        self.counters[name].connections += 1
        self._owner.on_connected(name)

    def received(self, connection: Connection, frames: list[bytes], num_bytes: int) -> None:
        """Bytes of a proven connection arrived, and completed these frames, perhaps none."""
        assert connection.name is not None
        counters, bucket = self.counters[connection.name], self._peer(connection.name).bucket
        counters.received_frames += len(frames)
        counters.received_bytes += num_bytes
        if bucket is not None and (pause_s := bucket.take(num_bytes, asyncio.get_running_loop().time())):
            counters.pauses += 1
            connection.pause(pause_s)
        if frames:
            self._owner.on_frames(connection.name, frames)

    def disconnected(self, connection: Connection) -> None:
        """A connection broke; a known actor is dialled again."""
        if connection not in self._all:  # it had to go
            return
        del self._all[connection]
        if connection.name is None:
            self.num_turned_away += not connection.dials
            return
        peer = self._peer(connection.name)
        peer.dialled = None if peer.dialled is connection else peer.dialled
        peer.accepted = None if peer.accepted is connection else peer.accepted
        if peer.newest is connection:
            peer.newest = None
            if not self._is_closed:
                self._owner.on_lost(connection.name)
                if connection.dials:
                    peer.dialler.lost(asyncio.get_running_loop().time())
                self.renew(connection.name)

    # ---- private ---------------------------------------------------------------------------------------------

    def _peer(self, name: str) -> _Peer:
        if name not in self._peers:
            bucket = None if self._max_bytes_per_s is None else TokenBucket(self._max_bytes_per_s)
            dialler = Dialler(self._owner.name, name, lambda: self._attempt(name))
            self._peers[name] = _Peer(dialler, bucket)
        return self._peers[name]

    def _listen(self, listener: socket.socket, *, crosses_sites: bool) -> None:
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._accepting.append(asyncio.create_task(self._accept(listener, crosses_sites)))

    async def _accept(self, listener: socket.socket, crosses_sites: bool) -> None:
        loop, num_failed = asyncio.get_running_loop(), 0
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                num_failed += 1
                if num_failed.bit_count() == 1:
                    _log.warning(
                        "No connection can be accepted now (%s), %d times so far.", error.strerror, num_failed
                    )
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            self._welcome(accepted, address, crosses_sites)
            await asyncio.sleep(0)  # where many come at once nothing waits here, and none would end

    def _welcome(self, accepted: socket.socket, address: object, crosses_sites: bool) -> None:
        loop, context = asyncio.get_running_loop(), self._server_tls if crosses_sites else None
        connection = self._new_connection(crosses_sites, dials=False)
        connection.client = client_of(str(address[0])) if isinstance(address, tuple) else ""
        limit_s = DIAL_LIMIT_S if context else None
        shake = loop.connect_accepted_socket(
            lambda: connection, accepted, ssl=context, ssl_handshake_timeout=limit_s
        )
        connection.accepting = loop.create_task(shake)
        connection.accepting.add_done_callback(partial(self._finish_accept, connection, accepted))
        self.opened(connection)
        unproven = {other: other.client for other in self._all if other.name is None and not other.dials}
        if len(unproven) > MAX_UNPROVEN:
            surplus = find_surplus(unproven)
            surplus.abort()
            self.disconnected(surplus)

    def _finish_accept(
        self, connection: Connection, accepted: socket.socket, task: asyncio.Task[Any]
    ) -> None:
        """Whoever did not get through TLS is dropped; a task may be cancelled before it has begun."""
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            accepted.close()
            self.disconnected(connection)
        if error is not None and not isinstance(error, OSError):
            _log.error("A connection could not be accepted.", exc_info=error)

    async def _stop_listening(self) -> None:
        """Drop the connections that are in the handshake of TLS, too."""
        shaking = [each.accepting for each in self._all if each.accepting is not None]
        for task in (*self._accepting, *shaking):
            task.cancel()
        await asyncio.gather(*self._accepting, *shaking, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _new_connection(self, crosses_sites: bool, *, dials: bool) -> Connection:
        return Connection(self, self._new_handshake(dials, crosses_sites), dials=dials, limit_s=DIAL_LIMIT_S)

    async def _dial(self, peer: _Peer) -> None:
        connection = await peer.dialler.run()
        _drop(peer.dialled, connection)
        peer.dialled = connection

    async def _attempt(self, name: str) -> Connection:
        """One attempt at the newest address: an actor may have been replaced."""
        connection = None
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                endpoint = self._peer(name).endpoint
                assert endpoint is not None
                connection = await self._open(endpoint)
            await connection.proven  # which has a limit of its own
            return connection
        except BaseException:
            if connection is not None:
                connection.abort()
            raise

    def _finish_dial(self, name: str, task: asyncio.Task[None]) -> None:
        peer = self._peer(name)
        peer.dialling = None
        has_failed = task.cancelled() or task.exception() is not None  # asked for: often nobody waits
        if not has_failed and peer.newest is None:  # it broke before the dialling had ended
            self.renew(name)

    async def _open(self, endpoint: Endpoint) -> Connection:
        loop = asyncio.get_running_loop()
        is_remote = (
            endpoint.unix_path is None or endpoint.name.split("/")[0] != self._owner.name.split("/")[0]
        )
        if endpoint.host is not None and endpoint.port is not None and is_remote:
            _, connection = await loop.create_connection(
                lambda: self._new_connection(True, dials=True),
                endpoint.host,
                endpoint.port,
                ssl=self._client_tls,
                server_hostname="" if self._client_tls else None,
            )
            return connection
        assert endpoint.unix_path is not None
        with shorten(endpoint.unix_path) as path:
            _, connection = await loop.create_unix_connection(
                lambda: self._new_connection(False, dials=True), path
            )
        return connection


def _drop(old: Connection | None, new: Connection) -> None:
    """Give up the connection that was there before: it may hang for as long as TCP likes."""
    if old is not None and old is not new:
        old.abort()


# ---- TLS of a Ray cluster whose owner has given it certificates --------------------------------------------


def uses_tls() -> bool:
    """Whether Ray encrypts what crosses between processes (RAY_USE_TLS); then the data plane does, too."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


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
