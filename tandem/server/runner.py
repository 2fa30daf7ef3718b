"""Runs the application until the process is asked to stop, and lets open answers end."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from tandem.config.schema import HttpConfig
from tandem.errors import ConfigError

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, not listening yet; port 0: any free one. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"There is no address {host!r} on this machine ({error}); correct --listen."
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The server cannot listen on {host}:{port} ({error.strerror}); stop what uses it, or choose another "
            "address with --listen."
        ) from None
    return listener


class Server(uvicorn.Server):
    """`run(sockets=[listener])` serves until SIGTERM or Ctrl-C, which is raised again at the end.

    From then on no connection is accepted, and open answers have `limits.drain_timeout_s` to end; a second signal ends
    them at once.
    """

    def __init__(self, app: ASGIApp, limits: HttpConfig, on_ready: Callable[[], None]) -> None:
        """on_ready: called when the server listens."""
        settings = uvicorn.Config(
            app,
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=math.ceil(limits.drain_timeout_s),
        )
        super().__init__(settings)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_ready()
