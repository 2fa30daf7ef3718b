"""Commands that run until they are stopped: `tandem serve`, the parties behind HTTP, for clients that speak OpenAI's
interface, and a page; `tandem device`, one process that keeps models, index and the link to a cloud for local commands;
`tandem mcp`, the parties as tools of assistants that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

from tandem.cli.ask import note_toy
from tandem.cli.options import (
    LOOPBACK,
    MODELS,
    QUESTION_SETTINGS,
    Join,
    PlaceOptions,
    SettingsOptions,
    parse_address,
    with_options,
)
from tandem.cli.output import StageLog
from tandem.errors import TandemError, install_line

if TYPE_CHECKING:
    import socket

    from tandem.client.tandem import Tandem

DEFAULT_PORT = 8000
STDIN, PART_BYTES = 0, 1 << 16
NEEDED = ("fastapi", "uvicorn", "prometheus_client")
Listen = Annotated[
    Any,
    Option(
        "--listen",
        metavar="HOST:PORT",
        parser=lambda text: parse_address(text, DEFAULT_PORT),
        help=f"where clients connect; any address but this machine's own needs an API key (default: "
        f"{LOOPBACK}:{DEFAULT_PORT})",
    ),
]
KeyFile = Annotated[
    Path | None,
    Option(
        "--api-key-file",
        metavar="FILE",
        help="a file that holds the key which clients must send, readable by this user alone (default: the "
        "environment variable TANDEM_API_KEY, if it is set)",
    ),
]
LogJson = Annotated[bool, Option("--log-json", help="log requests as JSON lines")]
Http = Annotated[
    bool, Option("--http", help="serve streamable HTTP at --listen instead of standard input and output")
]


@with_options(*QUESTION_SETTINGS)
def serve(
    *,
    listen: Listen = None,
    api_key_file: KeyFile = None,
    log_json: LogJson = False,
    place: PlaceOptions,
    settings: SettingsOptions,
) -> int:
    """Serve answers over HTTP until it is stopped: OpenAI's interface, Tandem's typed events, and a page.

    The other options are what a request gets that does not say otherwise. See docs/how-to/serve.md.
    """
    require_modules("tandem serve", "server", NEEDED)
    from tandem.plugins.server import access

    log = StageLog(is_quiet=log_json)
    host, port = listen or (LOOPBACK, DEFAULT_PORT)
    key = access.load_key(api_key_file)
    access.check_listener(host, key)
    config = settings.load(log)
    if not log_json:
        note_toy(config)
    from tandem.plugins.server import app, document_store, logs, runner

    with contextlib.closing(runner.bind(host, port)) as listener:
        url = url_of(listener)
        log("documents: opening the device's own")
        config, documents = document_store.open_store(config)
        with place.open(config, log) as tandem, contextlib.suppress(KeyboardInterrupt):
            is_home = place.join or tandem.nodes or tandem.config.cluster.runtime == "inline"
            logs.set_up(as_json=log_json)
            application = app.create_app(tandem, key=key, host=host, documents=documents if is_home else None)
            server = runner.Server(application, lambda: logs.log_event("listening", url=url))
            server.run(sockets=[listener])
    return 0


@with_options(*MODELS)
def device(join: Join = None, *, settings: SettingsOptions) -> int:
    """Run the device until it is stopped, joined to a cloud; `tandem ask` and `chat` find it on this machine.

    It keeps models, index and link, so that a question costs no start. Only commands of this user reach it.
    """
    if join is None:
        raise BadParameter("`tandem device` needs --join LINK; `tandem cloud serve` prints one.")
    require_modules("tandem device", "server", NEEDED)
    log = StageLog()
    config = settings.load(log)
    from tandem.client.tandem import Tandem
    from tandem.config.schema import start_settings
    from tandem.plugins.server.app import create_app
    from tandem.plugins.server.client import device_folder, reserved
    from tandem.plugins.server.runner import Server
    from tandem.topology import Party

    ready = "ready: `tandem ask QUESTION` and `tandem chat` ask this device, until Ctrl-C"
    with (
        reserved(device_folder(), start_settings(config, Party.DEVICE)) as listener,
        Tandem.join(join, config, progress=log) as tandem,
    ):
        server = Server(create_app(tandem), lambda: log(ready))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        log("stopping")
    return 0


def require_modules(command: str, extra: str, names: Sequence[str]) -> None:
    """Raises TandemError where one of these modules, which an extra brings, is not installed."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        problem = f"`{command}` needs {', '.join(missing)}, which this installation lacks"
        raise TandemError(f"{problem}; run `{install_line(extra)}`.")


def url_of(listener: socket.socket) -> str:
    """The address that clients use."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


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

        def note_opened(done: asyncio.Future[Tandem]) -> None:  # calls get the same sentence
            if done.cancelled():
                log("stopping")
            else:
                log(
                    "ready: ask, search, sources"
                    if done.exception() is None
                    else f"failed: {done.exception()}"
                )

        async def serve() -> None:
            """Answers at once: assistants wait for a few seconds only, and models may take longer to load."""
            opening = asyncio.to_thread(lambda: stack.enter_context(place.open(config, log)))
            server = make_server(tandem := asyncio.ensure_future(opening))
            tandem.add_done_callback(note_opened)
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
