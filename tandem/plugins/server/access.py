"""Around every request: who may use the server, errors in OpenAI's form, one line of log, metrics."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.errors import ConfigError
from tandem.plugins.server.http import ApiError, ClientLeftError
from tandem.plugins.server.logs import log_event, log_failure
from tandem.plugins.server.metrics import Metrics
from tandem.system.addresses import is_loopback
from tandem.system.paths import read_private

KEY_VARIABLE = "TANDEM_API_KEY"
MIN_KEY_CHARS = 16
GUARDED_PREFIXES = ("/v1/", "/metrics", "/mcp")
"""Paths that need the key: everything but the page, which holds nothing private, and the health check."""
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?", re.IGNORECASE)  # name or address, and port


def load_key(file: Path | None) -> str:
    """The API key of a file that only this user can read, or of TANDEM_API_KEY; empty if there is none.

    Raises ConfigError.
    """
    if file is not None:
        content = read_private(file)
        if content is None:
            message = f"The API key is read from {file}, but there is no such file; write the key to it."
            raise ConfigError(message)
        source, key = str(file), content.decode("utf-8", "replace").strip()
    else:
        source, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE, "").strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"The API key in {source} must be printable ASCII without spaces; make a new one.")
    if (key or file is not None) and len(key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"The API key in {source} has {len(key)} characters, fewer than {MIN_KEY_CHARS}; make one with "
            "`openssl rand -hex 32`."
        )
    return key


def check_listener(host: str, key: str) -> None:
    """Other machines may connect only with a key. Raises ConfigError."""
    if not key and not is_loopback(host):
        raise ConfigError(
            f"Listening on {host}, which other machines can reach, needs an API key; pass --api-key-file FILE or set "
            f"{KEY_VARIABLE}, or listen on 127.0.0.1."
        )


class Guard:
    """Checks the headers of each request."""

    def __init__(self, key: str, host: str, allowed_hosts: Sequence[str] = ()) -> None:
        """key: empty where none is needed. host: where the server listens. allowed_hosts: further names of it."""
        self._key = key.encode()
        self._names = {name.lower() for name in (host, *allowed_hosts)}

    def check(self, path: str, headers: Headers) -> None:
        """Raises ApiError: 401 for a wrong key, 403 for a request that a foreign web page has made.

        Browsers name the page in Origin, whatever the type of a body, unless all that the page does is to load
        something (an image, a script, a link); then Sec-Fetch-Site tells, as "none" of a typed address. A page can
        also lead a name of its own to this machine and be of the server's origin (DNS rebinding), so without a key the
        name must be a local one.
        """
        host, origin = ",".join(headers.getlist("host")), ",".join(headers.getlist("origin"))
        is_guarded = path.startswith(GUARDED_PREFIXES)
        if not self._key:
            self._check_name(host)
        own = [f"{scheme}://{host}".lower() for scheme in ("http", "https")]
        if "origin" in headers and origin.lower() not in own:
            raise foreign_page(f"of {origin:.100}")
        if self._key:
            if is_guarded:
                self._check_key(headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}")
        elif is_guarded and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise foreign_page("of other sites")

    def _check_name(self, host: str) -> None:
        parsed = HOST.fullmatch(host)
        name = parsed[1].lower() if parsed else ""
        if not (is_loopback(name) or name.strip("[]") in self._names):
            raise ApiError(
                403,
                f"This server is for its own machine, but was asked for as {host!r:.100}; use 127.0.0.1, add the name "
                "to the setting http.allowed_hosts, or start it with an API key.",
                code="foreign_host",
            )

    def _check_key(self, authorization: str) -> None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
            problem = "is wrong" if given else "is missing"
            message = f"The API key {problem}; send the server's own as `Authorization: Bearer KEY`."
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def foreign_page(whose: str) -> ApiError:
    """The refusal of what a web page asks that is not the server's own."""
    message = f"Web pages {whose} may not use this server; open its own page."
    return ApiError(403, message, code="foreign_origin")


CLIENT_LEFT = 499  # status in log and metrics of a request whose client left; nobody receives it
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
GUIDE = "docs/how-to/serve.md"


class GuardedApp:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self.metrics = metrics
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors become responses, unless the response has begun."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":  # there are no web sockets here, and none is let through unchecked
            return
        start_s, request_id = time.perf_counter(), secrets.token_hex(8)
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            try:
                self._guard.check(scope["path"], Headers(scope=scope))
                await self._app(scope, receive, send_and_note)
            except ApiError as error:
                await error_response(error)(scope, receive, send_and_note)
        except ClientLeftError:
            status = CLIENT_LEFT
        except Exception as error:
            log_failure(request_id, error)  # the client has got that of `on_error`, or one that breaks off
        finally:
            self._note(scope, request_id, status, time.perf_counter() - start_s)

    def _note(self, scope: Scope, request_id: str, status: int, duration_s: float) -> None:
        """Log and count a request that has ended; its path as the app declares it, since clients may type anything."""
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(method, path, status).inc()
        self.metrics.request_duration.labels(path).observe(duration_s)
        duration_s = round(duration_s, 4)
        log_event("request", id=request_id, method=method, path=path, status=status, duration_s=duration_s)


def error_response(error: ApiError) -> JSONResponse:
    """The response in OpenAI's form."""
    return JSONResponse(error.as_dict(), status_code=error.status, headers=error.headers)


async def on_error(_request: object, error: Exception) -> JSONResponse:
    """The response to an error of a route, or to a path or method that does not exist.

    An error that nobody foresaw is raised again, and logged.
    """
    if isinstance(error, HTTPException):
        message = f"{error.detail}; see {GUIDE}."
        error = ApiError(error.status_code, message, code="not_found", headers=error.headers or {})
    elif not isinstance(error, ApiError):
        error = ApiError(500, "The server failed on this request; see its log.", code="internal_error")
    return error_response(error)
