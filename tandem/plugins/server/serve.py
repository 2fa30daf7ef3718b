"""`tandem serve`: the parties behind HTTP, for clients that speak OpenAI's interface, and a page."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from tandem.cli.ask import note_toy
from tandem.cli.options import (
    LOOPBACK,
    QUESTION_SETTINGS,
    PlaceOptions,
    SettingsOptions,
    parse_address,
    with_options,
)
from tandem.cli.output import StageLog
from tandem.errors import TandemError, install_line

if TYPE_CHECKING:
    import socket

DEFAULT_PORT = 8000
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
            is_home = bool(place.join or tandem.nodes) or tandem.config.cluster.runtime == "inline"
            logs.set_up(as_json=log_json)
            own = documents if is_home else None
            application = app.create_app(tandem, key=key, host=host, documents=own)
            server = runner.Server(application, lambda: logs.log_event("listening", url=url))
            server.run(sockets=[listener])
    return 0


def require_modules(command: str, extra: str, names: Sequence[str]) -> None:
    """Raises TandemError where one of these modules, which an extra brings, is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise TandemError(
            f"`{command}` needs {', '.join(missing)}, which this installation lacks; run `{install_line(extra)}`."
        )


def url_of(listener: socket.socket) -> str:
    """The address that clients use."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
