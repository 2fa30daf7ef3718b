"""Runs the application until the process is asked to stop, and lets open answers end."""

from __future__ import annotations

import gc
import math
import socket
from collections.abc import Callable

import uvicorn

from tandem.errors import ConfigError
from tandem.plugins.server.access import GuardedApp
from tandem.plugins.server.connections import Connections, HttpConnection
from tandem.plugins.server.http import LIMITS, ServerLimits

BACKLOG = 2048
"""Connections that the system keeps until they are accepted."""
TURNS = 16
"""Turns of the event loop, at least, that take all places. What has no place is closed three turns after it was
accepted, so that few more files are open meanwhile."""


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
        """Listen.

        What was loaded until now stays. Left to the search for cycles, it would hold up the loop for a quarter of a
        second.
        """
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
        self._connections.close()
        await super().shutdown(sockets)
