"""Requests and responses of every route: errors in OpenAI's form, bodies, and server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from math import ceil, inf, isfinite
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.config.checks import SettingError, describe
from tandem.errors import Code, TandemError
from tandem.plugins.server.logs import log_event

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a server for its clients."""

    max_queries: int | None = None  # open or waiting at once; None: two for each of `cluster.max_sessions`
    max_body_bytes: int = 4_000_000  # of a request that is no document
    max_document_bytes: int = 32_000_000  # of a file that is added to the device's documents
    max_connections: int = 512  # at once; fewer where the process may not open so many files
    max_connections_per_address: int = 128
    request_timeout_s: float = 20.0  # for the head of a request, and for a body that comes more slowly than:
    min_body_bytes_per_s: int = 1000
    send_timeout_s: float = 60.0  # for a client to read
    drain_timeout_s: float = 60.0  # for open answers when the server is stopped


LIMITS = ServerLimits()
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's `type` of an error, by its status."""
UNSUPPORTED = "unsupported_parameter"
"""OpenAI's code of what this server does not have; also the type of pydantic's errors that say so."""
RESPONSES: Mapping[Code, tuple[int, str]] = {
    Code.INVALID: (400, "invalid_value"),
    Code.TOO_LONG: (400, "context_length_exceeded"),
    Code.OVER_LIMIT: (400, "invalid_value"),
    Code.BUSY: (429, "rate_limit_exceeded"),
    Code.TIMEOUT: (504, "timeout"),
}
"""Status and OpenAI's code of each kind of failure that is no failure of the server."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is refused, or whose answer failed."""

    status: int  # of HTTP
    message: str  # one sentence for the client; it may quote the request, so it is not logged
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The body of the response. An option's name is the client's: half a surrogate pair is shown as its escape."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        param = self.param and self.param.encode("utf-8", "backslashreplace").decode()
        return {"error": {"message": self.message, "type": kind, "param": param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Status 400. param: the option that is wrong, as the request names it."""
    return ApiError(400, message, param=param, code=code)


def must_be(param: str, expected: str, value: Any, remedy: str = "correct it") -> ApiError:
    """Status 400 for a value that an option, named as in the request, cannot have."""
    return bad_request(f"{param} must be {expected}, but it is {value!r:.60}; {remedy}.", param)


def unsupported(param: str, message: str) -> ApiError:
    """An option, or a value of one, that this server does not have."""
    return bad_request(message, param, UNSUPPORTED)


def failure(
    error: TandemError, names: Mapping[str, str] = NO_NAMES, other: tuple[int, str] = (500, "query_failed")
) -> ApiError:
    """The error for a query that the parties could not answer.

    names: what the request calls options, if something else. other: status and code where the error has none.
    """
    status, code = RESPONSES.get(error.code, other)
    param = names.get(error.option, error.option) if error.option else None
    headers = {"Retry-After": str(ceil(error.retry_after_s or 1))} if error.code is Code.BUSY else {}
    message = str(error.renamed(param) if param and isinstance(error, SettingError) else error)
    return ApiError(status, message, param=param, code=code, headers=headers)


def read_fields(kind: type[M], body: Any) -> M:
    """The fields of a request, of this kind. Raises ApiError, which names the first that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])[1:]
        code = UNSUPPORTED if problem["type"] == UNSUPPORTED else "invalid_value"
        raise bad_request(f"{name} {describe(error)}; correct it.", name, code) from None


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object that a request carries. Raises ApiError."""
    parts = read_parts(request, max_bytes, "A request", "shorten it", "request_too_large")
    text = b"".join([part async for part in parts])
    try:
        body = json.loads(text, parse_constant=_refuse_constant, parse_float=_read_number)
    except UnicodeDecodeError:
        problem = "is not UTF-8; send JSON"
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; correct it"
    except RecursionError:
        problem = f"is not JSON: {TOO_DEEP}; correct it"
    except ValueError as error:
        problem = f"is not JSON: {error}; correct it"
    else:
        if _is_too_deep(body):
            problem = f"cannot be read: {TOO_DEEP}; correct it"
        elif isinstance(body, dict):
            return body
        else:
            problem = f"must be a JSON object, but it is of type {type(body).__name__}; send an object"
    raise bad_request(f"The body {problem}.", code="invalid_json")


async def read_parts(
    request: Request, max_bytes: int, what: str, remedy: str, code: str
) -> AsyncIterator[bytes]:
    """A body as it comes. what, remedy, code: of the refusal of one that is longer. Raises ApiError."""
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                message = f"{what} has at most {max_bytes} bytes, this one has more; {remedy}."
                raise ApiError(413, message, code=code)
            yield part
    except ClientDisconnect:
        raise bad_request("The client left before the body was complete.", code="disconnected") from None


MAX_DEPTH = 100
TOO_DEEP = f"it is nested too deeply, in more than {MAX_DEPTH} lists and objects"


def _is_too_deep(value: Any) -> bool:
    """Whether code that calls itself for each level might not get to the bottom of it."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
    return bool(level)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name:.40} is no number in JSON")


def _read_number(text: str) -> float:
    """A number as any client writes it: 4.0 is a whole one."""
    number = float(text)
    if not isfinite(number):
        _refuse_constant(text)
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


MAX_NAMES, MAX_NAME, MAX_LOGGED = 20, 40, 200
"""Ignored fields that a response names, characters of each, and different ones that the log names in all."""


def name_ignored(names: Iterable[str], logged: set[str]) -> dict[str, str]:
    """The header that names fields which change nothing, if there are any; each comes into the log once.

    names: as the client wrote them; what is no name but may be a text is not logged. logged: those that are in the log
    already; receives new ones.
    """
    shown = list(dict.fromkeys(re.sub(r"[^A-Za-z0-9_.-]", "?", name[:MAX_NAME]) for name in names))
    for name in shown:
        if name not in logged and len(logged) < MAX_LOGGED and re.fullmatch(r"[a-z][a-z0-9_.]*", name):
            logged.add(name)
            log_event("ignored field", name=name)
    more = ["..."] if len(shown) > MAX_NAMES else []
    return {"X-Tandem-Ignored": ", ".join(shown[:MAX_NAMES] + more)} if shown else {}


LOOKS = 4  # at a client within the time in which it has to read, or hears nothing
SIGN_S, SIGN = 10.0, b": the answer is awaited\n\n"
"""What a stream sends where it had nothing to say for so long: proxies end what is silent for a minute. To clients it
is a comment."""
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # neither kept nor held back by a proxy


class ClientLeftError(Exception):
    """The client has closed its connection, or does not read."""


class EventStream(Response):
    """Sends texts as they come. The query ends with the stream: at its end, or when the client leaves or stalls."""

    media_type = "text/event-stream"

    def __init__(
        self,
        texts: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        send_timeout_s: float,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """texts: encoded events. close: ends their query. send_timeout_s: patience with a client that does not read."""
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._texts = texts
        self._close = close
        self._send_timeout_s = send_timeout_s
        self._sent_s = inf  # the last text
        self._sending_since_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond; raises ClientLeftError."""
        try:
            await while_connected(receive, self._send_all(send), self._watch(send))
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sent_s = time.monotonic()
        async for text in self._texts:
            self._sending_since_s = time.monotonic()
            part = {"type": "http.response.body", "body": text, "more_body": True}
            await send(part)  # waits while the socket is full
            self._sent_s, self._sending_since_s = time.monotonic(), None
        self._sent_s = inf
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, send: Send) -> None:
        """Return when the client stalls, and until then give signs to one that hears nothing. One look now and then
        costs less than a timeout for every text."""
        pause_s = min(self._send_timeout_s, SIGN_S) / LOOKS
        while True:
            await asyncio.sleep(pause_s)
            now_s, since_s = time.monotonic(), self._sending_since_s
            if since_s is not None and now_s - since_s > self._send_timeout_s:
                return
            if since_s is None and now_s - self._sent_s > SIGN_S - pause_s:
                self._sent_s = now_s
                await send({"type": "http.response.body", "body": SIGN, "more_body": True})


def encode_event(name: str | None, data: str) -> bytes:
    """One server-sent event. data: without line breaks, as JSON has it."""
    return (f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n").encode()


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, None]
) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeftError then.

    receive: of a request whose body was read. ends: further waits, each until the client counts as gone.
    """

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    leaving = [asyncio.create_task(end) for end in (wait_for_disconnect(), *ends)]
    try:
        await asyncio.wait({working, *leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        for task in (working, *leaving):
            task.cancel()
        await asyncio.gather(working, *leaving, return_exceptions=True)


def compact(value: Mapping[str, Any]) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
