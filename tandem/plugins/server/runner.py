"""Runs the application until the process is asked to stop, and lets open answers end; keeps count of connections.

Clients may be anybody, so there are so many connections of one address and in all, and a client may owe something for
so long: the head of a request, its body, or the reading of what it was sent. An answer, which the server owes, may
last. Where there are too many connections, one whose request has not come makes room for the next.
"""

from __future__ import annotations

import gc
import math
import socket
import time
from asyncio import BaseTransport, Transport
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tandem.errors import ConfigError
from tandem.plugins.server.access import GuardedApp, error_response
from tandem.plugins.server.http import LIMITS, ApiError, ServerLimits
from tandem.plugins.server.logs import log_event
from tandem.plugins.server.metrics import Metrics
from tandem.system.addresses import client_of, max_connections

BACKLOG = 2048  # connections that the system keeps until they are accepted
TURNS = 16
"""Turns of the event loop, at least, that take all places. What has no place is closed three turns after it was
accepted, so that few more files are open meanwhile."""


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, not listening yet; port 0: any free one. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        problem = f"There is no address {host!r} on this machine ({error})"
        raise ConfigError(f"{problem}; correct --listen.") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        problem = f"The server cannot listen on {host}:{port} ({error.strerror})"
        remedy = "stop what uses it, or choose another address with --listen"
        raise ConfigError(f"{problem}; {remedy}.") from None
    return listener


class Server(uvicorn.Server):
    """`run(sockets=[listener])` serves until SIGTERM or Ctrl-C, which is raised again at the end.

    From then on no connection is accepted, and open answers have `limits.drain_timeout_s` to end; a second signal ends
    them at once.
    """

    def __init__(self, app: GuardedApp, on_ready: Callable[[], None], limits: ServerLimits = LIMITS) -> None:
        """on_ready: called when the server listens."""
        self._connections = Connections(limits, app.metrics)
        settings = uvicorn.Config(
            app,
            http=HttpConnection,
            backlog=max(1, self._connections.most // TURNS),
            timeout_keep_alive=math.ceil(limits.request_timeout_s),
            log_config=None,
            log_level="error",  # warnings are about what a client sent, one for each time
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=math.ceil(limits.drain_timeout_s),
        )
        super().__init__(settings)
        self.server_state = self._connections
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. What was loaded until now stays: the search for cycles in it would hold up the loop for 0.25 s."""
        gc.collect()
        gc.freeze()
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio takes one number for this and for what it accepts at once
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times per second."""
        self._connections.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Also end what is accepted, but has not been made known yet."""
        self._connections.is_closed = True
        await super().shutdown(sockets)


DROPS = ("full_address", "full", "slow_head", "slow_body", "slow_reading", "malformed")
"""Why connections are dropped; the metric of each shows 0 before the first."""


class HttpConnection(H11Protocol):
    """One that the system has accepted. What its client owes is looked up now and then, so that bytes cost nothing."""

    server_state: Connections

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address = ""
        self._num_received = 0  # bytes
        self._num_before = 0  # of these, before the client began to owe what it does
        self._seen: tuple[object, ...] = ()  # last: what was owed, of which request, how much of it was paid
        self._since_s = 0.0  # when that changed

    def connection_made(self, transport: BaseTransport) -> None:
        """Take a place, if there is one."""
        super().connection_made(cast(Transport, transport))
        self.address = client_of(self.client[0] if self.client else "")
        self.server_state.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the place."""
        self.server_state.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes."""
        self._num_received += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP. uvicorn would raise an error where an answer has begun."""
        self.server_state.note("malformed", self.address)
        if self.is_unanswered:
            super().send_400_response(msg)
        else:
            self.transport.close()

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has come whose answer has not ended."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_busy(self) -> bool:
        """Whether a whole request has come, or its answer has begun, and the answer has not ended."""
        return self.has_request and not (self.cycle.more_body and self.is_unanswered)

    @property
    def is_unanswered(self) -> bool:
        """Whether no answer has begun to the request, or what there is of it."""
        return self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def look(self, now_s: float, limits: ServerLimits) -> None:
        """End the connection where its client has owed something for too long."""
        debt, allowed_s = "nothing", math.inf
        if num_unread := self.transport.get_write_buffer_size():
            debt, allowed_s = "reading", limits.send_timeout_s
        elif not self.has_request:  # or the rest of a body is owed that is needed no more
            debt, allowed_s = "head", limits.request_timeout_s
        elif self.cycle.more_body and not self.flow.read_paused:
            debt, allowed_s = "body", limits.request_timeout_s
        if (debt, self.cycle) != self._seen[:2]:
            self._num_before = self._num_received
        num_bytes = self._num_received - self._num_before
        paid = min(num_bytes, 1) if debt == "head" else num_unread  # a head counts from its first byte
        if debt == "body":
            allowed_s += num_bytes / limits.min_body_bytes_per_s
        if (debt, self.cycle, paid) != self._seen:
            self._seen, self._since_s = (debt, self.cycle, paid), now_s
        if now_s - self._since_s <= allowed_s:
            return
        if num_bytes or debt != "head" or self.cycle is None:  # else it was kept for another request
            self.server_state.note(f"slow_{debt}", self.address)
        if debt == "reading":
            self.transport.abort()
        elif self.is_unanswered and (num_bytes or debt == "body"):
            self.refuse(ApiError(408, f"The {debt} of the request came too slowly; send it again, faster."))
        else:
            self.transport.close()

    def refuse(self, error: ApiError) -> None:
        """Answer what the application never sees, and close."""
        response = error_response(error)
        status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()
        headers = (*map(b": ".join, response.raw_headers), b"connection: close")
        self.transport.write(b"\r\n".join((status, *headers, b"", response.body)))
        self.transport.close()


class Connections(ServerState):
    """The places of one server. uvicorn's own set has those, too, that end without one."""

    def __init__(self, limits: ServerLimits, metrics: Metrics) -> None:
        super().__init__()
        self._limits = limits
        self._metrics = metrics
        self.most = min(limits.max_connections, max_connections())
        self.is_closed = False  # takes no more
        self._by_address: dict[str, dict[HttpConnection, None]] = {}  # oldest first
        self._num_dropped: Counter[str] = Counter()
        for reason in DROPS:
            metrics.connections_dropped.labels(reason)
        metrics.connections_open.set_function(lambda: self.num_open)
        if self.most < limits.max_connections:
            log_event("few open files", connections=self.most, limit=limits.max_connections)

    @property
    def num_open(self) -> int:
        """Connections that have a place."""
        return sum(map(len, self._by_address.values()))

    def enter(self, connection: HttpConnection) -> None:
        """A new connection. Where there are too many, one whose request has not come makes room: of its address, or of
        the address with most of these. It is refused where all others are busy."""
        if self.is_closed:
            connection.transport.abort()
            return
        own = self._by_address.setdefault(connection.address, {})
        own[connection] = None
        connection.look(time.monotonic(), self._limits)
        if len(own) > self._limits.max_connections_per_address:
            self._make_room(own, connection, "full_address")
        elif self.num_open > self.most:
            crowds = self._by_address.values()
            most_waiting = max(crowds, key=lambda crowd: sum(not each.is_busy for each in crowd))
            self._make_room(most_waiting, connection, "full")

    def leave(self, connection: HttpConnection) -> None:
        """A connection has ended, or has to."""
        own = self._by_address.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by_address.pop(connection.address, None)

    def look(self) -> None:
        """End connections whose clients owe something for too long."""
        now_s = time.monotonic()
        for connection in [each for own in self._by_address.values() for each in own]:
            connection.look(now_s, self._limits)

    def note(self, reason: str, address: str) -> None:
        """Count a connection that is dropped; the log says so ever more rarely, as who connects decides how often."""
        self._metrics.connections_dropped.labels(reason).inc()
        self._num_dropped[reason] += 1
        if self._num_dropped[reason].bit_count() == 1:
            log_event("connection dropped", reason=reason, number=self._num_dropped[reason], address=address)

    def _make_room(self, crowd: dict[HttpConnection, None], newest: HttpConnection, reason: str) -> None:
        """The oldest without a request goes, else the oldest whose body has not come, else the newest."""
        waiting = (each for each in crowd if not each.is_busy)
        surplus = min(waiting, key=lambda each: (each is newest, each.has_request))
        self.note(reason, surplus.address)
        self.leave(surplus)
        if surplus is not newest:
            surplus.transport.abort()
            return
        problem, remedy = f"{self.most} connections, as many as it takes", "retry later"
        if reason == "full_address":
            most = self._limits.max_connections_per_address
            problem = f"{most} connections from {surplus.address}, as many as one address may have"
            remedy = "close some"
        message, headers = f"This server has {problem}; {remedy}.", {"Retry-After": "1"}
        surplus.refuse(ApiError(503, message, code="too_many_connections", headers=headers))
