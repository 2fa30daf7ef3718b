"""A joined device that other processes of its user may ask: its actors behind a socket of the Unix domain.

    `tandem ask` --calls--> socket in a folder of this user's --> actors of the device's site

The folder has mode 0700 and the socket 0600. What a command opened and left is cancelled when its connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tandem import __version__
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, TandemError
from tandem.modes.spec import SessionSpec
from tandem.sites.deployment import Deployment
from tandem.sites.local_calls import CALLS, MAX_LINE_BYTES, encode_error, encode_result, read_line, write_line
from tandem.system.files import make_folder, open_lock
from tandem.topology import Party
from tandem.transport.sockets import bind

SOCKET, LOCK = "socket", "lock"


@contextlib.contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """One device per folder: raises ClusterError where another process has it."""
    make_folder(folder)
    with open_lock(folder / LOCK) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            process = os.read(descriptor, 20).decode() or "unknown"
            raise ClusterError(
                f"A device of this user is running already (process {process}); `tandem ask` finds it, or stop it "
                "first."
            ) from None
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # it is a help only
            os.write(descriptor, str(os.getpid()).encode())
        yield


@contextlib.contextmanager
def offered(
    device: Deployment, config: Config, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Let other processes of this user ask a device; `reserved` comes before.

    settings: those that the device was started with, so that a question can say which of its own it ignores.
    """
    offer = Offer(device, config, settings or {})
    path = str(folder / SOCKET)
    device.loop.run(offer.start(path))
    try:
        yield
    finally:
        device.loop.run(offer.stop())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class Offer:
    """Answers calls of local commands."""

    def __init__(self, device: Deployment, config: Config, settings: Mapping[str, str]) -> None:
        self._device = device
        self._config = config
        self._settings = dict(settings)
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def start(self, path: str) -> None:
        """Listen at a path."""
        self._server = await asyncio.start_unix_server(self._welcome, sock=bind(path), limit=MAX_LINE_BYTES)

    async def stop(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One command, from its connection to its end."""
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        try:
            await Visit(self._device, self._config, writer).serve(reader, self._settings)
        except (OSError, ValueError, TandemError):  # it left, or it is no command of Tandem
            pass
        except asyncio.CancelledError:  # the device stops
            pass
        finally:
            self._visits.discard(visit)
            writer.transport.abort()


class Visit:
    """The calls of one command."""

    def __init__(self, device: Deployment, config: Config, writer: asyncio.StreamWriter) -> None:
        self._device = device
        self._config = config
        self._writer = writer
        self._sessions: set[int] = set()  # that it opened
        self._calls: set[asyncio.Task[None]] = set()
        self._told: dict[str, Any] = {}  # of the models, what the command knows

    async def serve(self, reader: asyncio.StreamReader, settings: Mapping[str, str]) -> None:
        """Until the command leaves; what it opened and did not see to its end is cancelled then."""
        try:
            self._write({"tandem": __version__, "pid": os.getpid(), "settings": dict(settings)})
            while line := await reader.readline():
                call = asyncio.get_running_loop().create_task(self._answer(read_line(line)))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        finally:
            for call in list(self._calls):
                call.cancel()
            for session in self._sessions:  # of one that has ended, this changes nothing
                self._device.parties[Party.DEVICE]["draft_queue"].cancel.remote(session)

    async def _answer(self, request: Mapping[str, Any]) -> None:
        number = request.get("id")
        try:
            result = await self._call(request.get("actor"), request.get("method"), request.get("arguments"))
            self._write({"id": number, "result": encode_result(result)})
        except TandemError as error:
            self._write({"id": number, "error": encode_error(error)})
        except (TypeError, ValueError) as error:
            self._write({"id": number, "error": encode_error(CallError(f"The call is malformed: {error}."))})

    async def _call(self, actor: Any, method: Any, arguments: Any) -> Any:
        if (actor, method) not in CALLS or not isinstance(arguments, list):
            raise CallError(f"A device offers no call {actor!r:.40}.{method!r:.40} to local commands.")
        if actor == "site":
            return await self._device.status(self._config)
        if method == "open":
            self._sessions.add(SessionSpec.from_json(*arguments).session)
        return await getattr(self._device.parties[Party.DEVICE][actor], method).remote(*arguments)

    def _write(self, values: dict[str, Any]) -> None:
        """With what the device knows of the models, where that has changed: a cloud may have come."""
        known = {str(party): dict(described) for party, described in self._device.described.items()}
        if known != self._told:
            self._told = values["described"] = known
        self._writer.write(write_line(values))
