"""The device that `tandem device` runs on this machine, asked by other commands of its user.

It serves the HTTP interface of `tandem serve` on a Unix-domain socket that this user alone may open (its folder has
mode 0700, the socket 0600). What a command asked and left is cancelled when its connection ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import is_dataclass
from functools import cache
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from math import nan
from pathlib import Path
from typing import Any, Unpack, get_type_hints

from pydantic import TypeAdapter

from tandem.client.answers import new_seed, to_plain
from tandem.client.ask import BatchItem, BatchProgress, list_questions
from tandem.client.request import QueryOptions
from tandem.config.files import walk
from tandem.config.schema import Config
from tandem.errors import ClusterError, QueryError, TandemError
from tandem.events import EVENT_TYPES, Event, collect
from tandem.system import __version__
from tandem.system.paths import make_folder, open_lock, state_folder
from tandem.topology import PARTIES
from tandem.transport.sockets import bind, shorten

SOCKET, STARTED = "socket", "started.json"
QUERY_SETTINGS = {"link.on_peer_loss": "on_peer_loss", "cluster.query_timeout_s": "timeout_s"}
"""Settings that are options of a query by another name, besides those in `sampling` and `decoding`."""
DOCUMENTS = {f"{party}.num_documents" for party in PARTIES}


def device_folder() -> Path:
    """The folder in which a device of this user listens."""
    return state_folder() / "device"


@contextlib.contextmanager
def reserved(folder: Path, settings: Mapping[str, str]) -> Iterator[socket.socket]:
    """The socket of a device, not listening yet. Raises ClusterError where another process has it.

    settings: those that the device is started with, so that a question can say which of its own it ignores.
    """
    make_folder(folder)
    with open_lock(folder / STARTED) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClusterError(
                f"A device of this user is running already (process {_read_started(folder)['pid']}); `tandem ask` "
                "finds it, or stop it first."
            ) from None
        os.ftruncate(descriptor, 0)
        started = {"pid": os.getpid(), "version": __version__, "settings": dict(settings)}
        os.write(descriptor, json.dumps(started).encode())
        with contextlib.closing(bind(str(folder / SOCKET))) as listener:
            yield listener


class RunningDevice:
    """Asks the device that runs here. Its methods are those of `Tandem`, as far as questions need them."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        """config: of which the options of a query count here; all else is as the device was started.

        Raises ClusterError where no device of this version runs.
        """
        self._folder = folder or device_folder()
        started = _read_started(self._folder)
        if started["version"] != __version__:
            raise ClusterError(
                f"The device of this machine runs Tandem {started['version']!r:.20}, this command {__version__!r}; "
                "restart `tandem device`."
            )
        self.pid: int = started["pid"]
        self.settings: dict[str, str] = started["settings"]
        self._options = _options_of(config)
        self._connections: set[socket.socket] = set()

    @staticmethod
    def is_running(folder: Path | None = None) -> bool:
        """Whether a device listens. folder: where; default: that of this user."""
        with contextlib.suppress(OSError), _connect(folder or device_folder()):
            return True
        return False

    def __enter__(self) -> RunningDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is still asked, and leave the device."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)

    def stream(self, question: str, **options: Unpack[QueryOptions]) -> Iterator[Event]:
        """Events of `question` as they happen. Leaving the loop early cancels the query. Raises TandemError."""
        given = {name: value for name, value in options.items() if value is not None}
        body = json.dumps(to_plain({"question": question, **self._options, **given}))
        with self._request("POST", "/v1/tandem/events", body) as response:
            for name, fields in _read_events(response):
                if name == "error":
                    raise QueryError(fields["error"]["message"])
                if name in EVENT_TYPES:
                    kind: Any = EVENT_TYPES[name]
                    yield _adapter(kind).validate_python(_with_nan(kind, fields))
                if name == "done":
                    return
        raise self._stopped()

    def batch(
        self,
        questions: Iterable[str],
        *,
        concurrency: int = 8,
        progress: BatchProgress | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[BatchItem]:
        """An item for each question as it finishes, so many at once."""
        texts = list_questions(questions)
        pool = ThreadPoolExecutor(concurrency)
        try:
            asked = [pool.submit(self._answer, number, text, options) for number, text in enumerate(texts)]
            for num_finished, item in enumerate(as_completed(asked), 1):
                if progress is not None:
                    progress(num_finished, len(texts))
                yield item.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def status(self) -> dict[str, Any]:
        """The device's own state, in the form of `Tandem.status`."""
        with self._request("GET", "/v1/tandem/actors") as response:
            status: dict[str, Any] = json.load(response)
        return status

    def _answer(self, index: int, question: str, options: QueryOptions) -> BatchItem:
        seed = options.get("seed")
        asked: Any = {**options, "seed": new_seed() if seed is None else seed}
        try:
            answer = collect(list(self.stream(question, **asked)), asked["seed"])
        except TandemError as error:
            return BatchItem(index=index, question=question, error=error)
        return BatchItem(index=index, question=question, answer=answer)

    @contextlib.contextmanager
    def _request(self, method: str, path: str, body: str | None = None) -> Iterator[HTTPResponse]:
        """The response to a request. Raises QueryError where it is refused, ClusterError where nobody answers."""
        try:
            with _connect(self._folder) as connection:
                http = HTTPConnection("localhost")
                http.sock = connection
                self._connections.add(connection)
                try:
                    http.request(method, path, body)
                    response = http.getresponse()
                    if response.status != HTTPStatus.OK:
                        raise QueryError(json.load(response)["error"]["message"])
                    yield response
                finally:
                    self._connections.discard(connection)
        except (OSError, HTTPException):
            raise self._stopped() from None

    def _stopped(self) -> ClusterError:
        return ClusterError(
            f"The device (process {self.pid}) has stopped; start it again with `tandem device --join LINK`."
        )


def _connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with shorten(str(folder / SOCKET)) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _read_started(folder: Path) -> dict[str, Any]:
    try:
        started: dict[str, Any] = json.loads((folder / STARTED).read_bytes())
        return started
    except (OSError, ValueError):
        raise ClusterError(
            f"No device answers in {folder}; start one with `tandem device --join LINK`."
        ) from None


def _options_of(config: Config) -> dict[str, Any]:
    """The settings of a question that differ from the defaults, as options of a query."""
    options: dict[str, Any] = {}
    defaults = {f"{section}.{setting.name}": value for section, setting, value in walk(Config().with_names())}
    for section, setting, value in walk(config.with_names()):
        key = f"{section}.{setting.name}"
        if value == defaults.get(key):
            continue
        if section in ("sampling", "decoding"):
            options[setting.name] = value
        elif key in QUERY_SETTINGS:
            options[QUERY_SETTINGS[key]] = value
        elif key in DOCUMENTS:
            options.setdefault("num_documents", {})[section] = value
    return options


# ---- typed events as JSON: nan is null there ---------------------------------------------------------------


_hints, _adapter = cache(get_type_hints), cache(TypeAdapter)


def _read_events(response: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def _with_nan(kind: Any, value: Any) -> Any:
    """A value of a `kind` from JSON, with nan where a number is null."""
    if value is None and kind is float:
        return nan
    if not is_dataclass(kind):
        return value
    record: Any = kind
    hints = _hints(record)
    return {name: _with_nan(hints[name], field) for name, field in value.items()}
