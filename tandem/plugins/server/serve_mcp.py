"""`tandem mcp`: the parties as tools of assistants that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from tandem.cli.options import LOOPBACK, QUESTION_SETTINGS, PlaceOptions, SettingsOptions, with_options
from tandem.cli.output import StageLog
from tandem.plugins.server.serve import DEFAULT_PORT, NEEDED, KeyFile, Listen, require_modules, url_of

if TYPE_CHECKING:
    from tandem.client.tandem import Tandem

STDIN, PART_BYTES = 0, 1 << 16
Http = Annotated[
    bool, Option("--http", help="serve streamable HTTP at --listen instead of standard input and output")
]


@with_options(*QUESTION_SETTINGS)
def mcp(
    *,
    http: Http = False,
    listen: Listen = None,
    api_key_file: KeyFile = None,
    place: PlaceOptions,
    settings: SettingsOptions,
) -> int:
    """Offer the tools ask, search and sources to an assistant, until it leaves or this is stopped.

    The assistant starts this command and talks to it over standard input and output. See docs/how-to/mcp.md.
    """
    if not http and (listen or api_key_file):
        raise BadParameter("--listen and --api-key-file are for --http; add it, or leave them out.")
    require_modules("tandem mcp", "mcp", ("mcp", *NEEDED))
    from tandem.plugins.server import access, logs, runner
    from tandem.plugins.server.mcp import PATH, make_app, make_server

    log = StageLog()
    host, port = listen or (LOOPBACK, DEFAULT_PORT)
    key = access.load_key(api_key_file) if http else ""
    access.check_listener(host, key)
    config = settings.load(log)
    logs.set_up(as_json=False)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(runner.bind(host, port))) if http else None

        def opened() -> Tandem:
            return stack.enter_context(place.open(config, log))

        async def serve() -> None:
            """Answers at once: assistants wait for a few seconds only, and models may take longer to load."""
            server = make_server(tandem := asyncio.ensure_future(asyncio.to_thread(opened)))
            tandem.add_done_callback(lambda done: log(describe_opened(done)))
            if listener is None:
                leave = interruptible_stdin()
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, leave)
                await server.run_stdio_async()
                return
            app = make_app(server, key, host, config.http.allowed_hosts)
            serving = runner.Server(app, lambda: log(f"listening: {url_of(listener)}{PATH}"))
            async with server.session_manager.run():
                await serving.serve(sockets=[listener])

        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
    return 0


def interruptible_stdin() -> Callable[[], None]:
    """Put a pipe before standard input; the function ends what is read there.

    Otherwise a thread that waits for the assistant's next line would keep the process from ending.
    """
    kept, (reading, writing) = os.dup(STDIN), os.pipe()
    os.dup2(reading, STDIN)
    os.close(reading)
    end = os.fdopen(writing, "wb", buffering=0)

    def copy() -> None:
        with contextlib.suppress(OSError, ValueError), end:  # it was closed meanwhile
            while part := os.read(kept, PART_BYTES):
                end.write(part)

    threading.Thread(target=copy, name="stdin", daemon=True).start()
    return end.close


def describe_opened(done: asyncio.Future[Tandem]) -> str:
    """The line that says whether tools can be used; calls get the same sentence."""
    if done.cancelled():
        return "stopping"
    return "ready: ask, search, sources" if done.exception() is None else f"failed: {done.exception()}"
