"""Connections of HTTP clients, who may be anybody: how many there are, of one address and in all, and for how long a
client may owe something.

It owes the head of a request, its body, and the reading of what it was sent. An answer, which the server owes, may
last. Where there are too many connections, one whose request has not come makes room for the next.
"""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop, BaseTransport, Transport
from collections import Counter
from enum import StrEnum
from http import HTTPStatus
from math import inf
from typing import Any, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tandem.plugins.server.access import error_response
from tandem.plugins.server.http import ApiError, ServerLimits
from tandem.plugins.server.logs import log_event
from tandem.plugins.server.metrics import Metrics
from tandem.system.addresses import client_of, max_connections

DROPS = ("full_address", "full", "slow_head", "slow_body", "slow_reading", "malformed")
"""Why connections are dropped."""


class Debt(StrEnum):
    """A client's debt."""

    HEAD = "head"
    BODY = "body"
    READING = "reading"
    NOTHING = "nothing"


class HttpConnection(H11Protocol):
    """One that the system has accepted. What its client owes is looked up now and then, so that bytes cost nothing."""

    server_state: Connections

    def __init__(
        self,
        config: Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self._num_received = 0  # bytes
        self._num_before = 0  # of these, before the client began to owe what it does
        self._seen: tuple[
            object, ...
        ] = ()  # at the last look: the debt, of which request, how much of it was paid
        self._since_s = 0.0  # when that changed

    # ---- called by uvicorn and the event loop ----------------------------------------------------------------

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

    # ---- what becomes of its place ---------------------------------------------------------------------------

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

    @property
    def debt(self) -> Debt:
        """The client's debt now."""
        if self.transport.get_write_buffer_size():
            return Debt.READING
        if not self.has_request:
            return Debt.HEAD  # or the rest of a body that is needed no more
        return Debt.BODY if self.cycle.more_body and not self.flow.read_paused else Debt.NOTHING

    def look(self, now_s: float, limits: ServerLimits) -> None:
        """End the connection where its client has owed something for too long."""
        debt = self.debt
        if (debt, self.cycle) != self._seen[:2]:
            self._num_before = self._num_received
        num_bytes = self._num_received - self._num_before
        paid, allowed_s = 0, inf
        match debt:
            case Debt.HEAD:  # counts from its first byte
                paid, allowed_s = min(num_bytes, 1), limits.request_timeout_s
            case Debt.BODY:
                allowed_s = limits.request_timeout_s + num_bytes / limits.min_body_bytes_per_s
            case Debt.READING:
                paid, allowed_s = self.transport.get_write_buffer_size(), limits.send_timeout_s
        if (debt, self.cycle, paid) != self._seen:
            self._seen, self._since_s = (debt, self.cycle, paid), now_s
        if now_s - self._since_s > allowed_s:
            self._end(debt, num_bytes)

    def _end(self, debt: Debt, num_bytes: int) -> None:
        """num_bytes: that came while the client owed this."""
        if num_bytes or debt is not Debt.HEAD or self.cycle is None:  # else it was kept for another request
            self.server_state.note(f"slow_{debt}", self.address)
        if debt is Debt.READING:
            self.transport.abort()
        elif self.is_unanswered and (num_bytes or debt is Debt.BODY):
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
        self._is_closed = False
        self._by_address: dict[str, dict[HttpConnection, None]] = {}  # oldest first
        self._num_dropped: Counter[str] = Counter()
        for reason in DROPS:  # those of which there is none yet show 0
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
        if self._is_closed:
            connection.transport.abort()
            return
        own = self._by_address.setdefault(connection.address, {})
        own[connection] = None
        connection.look(time.monotonic(), self._limits)
        if len(own) > self._limits.max_connections_per_address:
            self._make_room(own, connection, "full_address")
        elif self.num_open > self.most:
            self._make_room(max(self._by_address.values(), key=_num_waiting), connection, "full")

    def leave(self, connection: HttpConnection) -> None:
        """A connection has ended, or has to."""
        own = self._by_address.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by_address.pop(connection.address, None)

    def close(self) -> None:
        """Take no more."""
        self._is_closed = True

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


def _num_waiting(crowd: dict[HttpConnection, None]) -> int:
    return sum(not each.is_busy for each in crowd)
