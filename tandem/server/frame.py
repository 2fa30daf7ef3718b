"""What happens around every request: access, errors in OpenAI's form, one line of log, metrics."""

from __future__ import annotations

import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.server.access import Guard
from tandem.server.errors import ApiError
from tandem.server.logs import log_event, log_failure
from tandem.server.metrics import Metrics
from tandem.server.streams import ClientLeftError
from tandem.server.tracing import join_trace

CLIENT_LEFT = 499
"""Status in log and metrics of a request whose client left; nobody receives it."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
GUIDE = "docs/how-to/serve.md"
REQUEST_ID = "x-request-id"


class Frame:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors become responses, unless the response has begun."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s, request_id = time.perf_counter(), secrets.token_hex(8)
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            try:
                self._guard.check(scope["path"], headers := Headers(scope=scope))
                join_trace(headers)
                await self._app(scope, receive, send_and_note)
            except ApiError as error:
                await error_response(error)(scope, receive, send_and_note)
        except ClientLeftError:
            status = CLIENT_LEFT
        except Exception as error:
            log_failure(request_id, error)  # the client has got `on_failure`, or a response that breaks off
        finally:
            self._note(scope, request_id, status, time.perf_counter() - start_s)

    def _note(self, scope: Scope, request_id: str, status: int, duration_s: float) -> None:
        """Log and count a request that has ended."""
        path, method = route_of(scope), scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(method, path, status).inc()
        self._metrics.request_duration.labels(path).observe(duration_s)
        log_event(
            "request", id=request_id, method=method, path=path, status=status, duration_s=round(duration_s, 4)
        )


def route_of(scope: Scope) -> str:
    """The path as the app declares it: what a client types may be anything."""
    return getattr(scope.get("route"), "path", "other")


def error_response(error: ApiError) -> JSONResponse:
    """The response for an error."""
    return JSONResponse(error.as_dict(), status_code=error.status, headers=error.headers)


async def on_api_error(_request: object, error: Exception) -> JSONResponse:
    """A handler of errors that routes raise."""
    assert isinstance(error, ApiError)
    return error_response(error)


async def on_failure(_request: object, _error: Exception) -> JSONResponse:
    """The same for what nobody foresaw, which is raised again and logged."""
    return error_response(
        ApiError(500, "The server failed on this request; see its log.", code="internal_error")
    )


async def on_http_error(_request: object, error: Exception) -> JSONResponse:
    """The same for paths and methods that there are none of."""
    assert isinstance(error, HTTPException)
    message = f"{error.detail}; see {GUIDE}."
    return error_response(ApiError(error.status_code, message, code="not_found", headers=error.headers))
