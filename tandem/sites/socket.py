"""A device in a process of its own (`tandem device`), asked by other processes of its user over a Unix-domain socket.

    device --{"tandem", "pid", "settings", "described"}--> command, once
    command --{"id", "actor", "method", "arguments"}--> device
    device --{"id", "result" or "error", perhaps "described"}--> command, in any order

JSON objects, a line each. They cross a socket that this user alone may open (its folder has mode 0700, the socket
0600), never a link. What a command opened and left is cancelled when its connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from tandem import errors
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, Code, TandemError
from tandem.events import Event
from tandem.modes.spec import SessionSpec
from tandem.sites.port import CALLS, Deployment, Progress, SitePort
from tandem.system.files import make_folder, open_lock
from tandem.system.paths import state_folder
from tandem.system.version import __version__
from tandem.topology import Party
from tandem.transport.sockets import bind, shorten

SOCKET, LOCK = "socket", "lock"
STATUS = ("device", "status")
"""Of the device as a whole; what else a command can call, `tandem.sites.port.CALLS` says."""
CONNECT_LIMIT_S = 5.0
MAX_LINE_BYTES = 64 << 20
EVENT_TYPES = {event_type.__name__: event_type for event_type in get_args(Event)}


def socket_folder() -> Path:
    """The folder in which a device of this user listens for local commands."""
    return state_folder() / "device"


def is_device_running(folder: Path | None = None) -> bool:
    """Whether a device listens for local commands. folder: where; default: that of this user."""
    path = (folder or socket_folder()) / SOCKET
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError), shorten(str(path)) as short:
        probe.connect(short)
        return True
    return False


# ---- The command's end -------------------------------------------------------------------------------------


class SocketSite(SitePort):
    """The device's site, which may be called from any event loop."""

    def __init__(self, described: dict[str, dict[str, Any]], loop: asyncio.AbstractEventLoop) -> None:
        """described: of the parties; kept up to date. loop: where the connection lives."""
        self.pid = 0
        self.settings: dict[str, str] = {}  # that the device was started with
        self._described = described
        self._loop = loop
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """As every site's; of the site "device" as a whole only the status."""
        request = self._request(role, method, arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self._loop))

    async def connect(self, path: Path) -> None:
        """Raises ClusterError where no device of this version answers."""
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                with shorten(str(path)) as short:
                    reader, self._writer = await asyncio.open_unix_connection(short, limit=MAX_LINE_BYTES)
                hello = read_line(await reader.readline())
        except (OSError, TimeoutError):
            raise ClusterError(
                f"No device answers at {path}; start one with `tandem device --join LINK`."
            ) from None
        if hello.get("tandem") != __version__:
            raise ClusterError(
                f"The device of this machine runs Tandem {hello.get('tandem')!r:.20}, this command {__version__!r}; "
                "restart `tandem device`."
            )
        self.pid, self.settings = hello["pid"], hello["settings"]
        self._described.update(hello["described"])
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    async def disconnect(self) -> None:
        """Leave the device; it cancels what is still open here."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.transport.abort()

    async def _request(self, actor: str, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._writer is None or self._writer.is_closing():
            raise self._stopped()
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "actor": actor, "method": method, "arguments": list(arguments)}
        self._writer.write(write_line(request))
        try:
            return await reply
        finally:
            del self._replies[number]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Give replies to those who wait for them, until the device goes."""
        with contextlib.suppress(OSError, ClusterError):
            while line := await reader.readline():
                self._receive(read_line(line))
        if self._writer is not None:
            self._writer.close()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self._stopped())

    def _receive(self, values: dict[str, Any]) -> None:
        self._described.update(values.get("described", {}))
        reply = self._replies.get(values.get("id", -1))
        if reply is None or reply.done():
            return
        try:
            result = decode_result(values.get("result"))
        except CallError as error:
            reply.set_exception(error)
            return
        if "error" in values:
            reply.set_exception(decode_error(values["error"]))
        else:
            reply.set_result(result)

    def _stopped(self) -> CallError:
        return CallError(
            f"The device (process {self.pid}) has stopped; start it again with `tandem device --join LINK`."
        )


@dataclass(kw_only=True)
class SocketDeployment(Deployment):
    """The device in another process; closing this leaves that running."""

    sites: dict[str, SocketSite] = field(default_factory=dict)

    @property
    def device(self) -> SocketSite:
        """The only site that can be asked."""
        return self.sites[Party.DEVICE]

    async def status(self, config: Config) -> dict[str, Any]:
        """As the device reports it; its own settings count."""
        status: dict[str, Any] = await self.device.call(*STATUS)
        return status

    def close(self) -> None:
        """Leave the device."""
        self.loop.run(self.device.disconnect())
        self.loop.close()


def connect(progress: Progress, folder: Path | None = None) -> SocketDeployment:
    """Ask the device that `tandem device` runs here. Raises ClusterError if there is none, or of another version."""
    deployment = SocketDeployment()
    site = SocketSite(deployment.described, deployment.loop.event_loop)
    deployment.sites = {Party.DEVICE: site}
    try:
        deployment.loop.run(site.connect((folder or socket_folder()) / SOCKET))
    except BaseException:
        deployment.close()
        raise
    cloud = deployment.described.get(Party.CLOUD, {}).get("model", "no cloud so far")
    progress(f"device: process {site.pid} is running here (tandem device), {cloud}")
    return deployment


# ---- The device's end --------------------------------------------------------------------------------------


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
def listening(
    device: Deployment, config: Config, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Let other processes of this user ask a device; `reserved` comes before.

    settings: those that the device was started with, so that a question can say which of its own it ignores.
    """
    path, connections = str(folder / SOCKET), set[asyncio.Task[None]]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One command, from its connection to its end."""
        connection = asyncio.current_task()
        assert connection is not None
        connections.add(connection)
        try:
            await _CommandConnection(device, config, writer).serve(reader, settings or {})
        except (OSError, ValueError, TandemError, asyncio.CancelledError):
            pass  # it left, it is no command of Tandem, or the device stops
        finally:
            connections.discard(connection)
            writer.transport.abort()

    async def start() -> asyncio.Server:
        return await asyncio.start_unix_server(accept, sock=bind(path), limit=MAX_LINE_BYTES)

    async def stop() -> None:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    server = device.loop.run(start())
    try:
        yield
    finally:
        device.loop.run(stop())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class _CommandConnection:
    """The calls of one command."""

    def __init__(self, device: Deployment, config: Config, writer: asyncio.StreamWriter) -> None:
        self._device = device
        self._site = device.sites[Party.DEVICE]
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
            # Of one that has ended, this changes nothing.
            cancelled = (self._site.cancel(session) for session in self._sessions)
            await asyncio.gather(*cancelled, return_exceptions=True)

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
        if not isinstance(arguments, list) or (actor, method) not in {*CALLS, STATUS}:
            raise CallError(f"A device offers no call {actor!r:.40}.{method!r:.40} to local commands.")
        if (actor, method) == STATUS:
            return await self._device.status(self._config)
        if method == "open":
            self._sessions.add(SessionSpec.from_json(*arguments).session)
        return await self._site.call(actor, method, *arguments)

    def _write(self, values: dict[str, Any]) -> None:
        """Write the address file with what the device knows of the models, where that has changed: a cloud may have
        come."""
        known = {str(party): dict(described) for party, described in self._device.described.items()}
        if known != self._told:
            self._told = values["described"] = known
        self._writer.write(write_line(values))


# ---- Lines -------------------------------------------------------------------------------------------------


def write_line(values: Mapping[str, Any]) -> bytes:
    """One message."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes) -> dict[str, Any]:
    """Inverse of `write_line`. Raises ClusterError for what is no message."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ClusterError(f"The other end of the device's socket does not speak Tandem ({line[:40]!r}).")
    return values


def encode_result(value: Any) -> Any:
    """A result as JSON has it; events with the names of their types."""
    if isinstance(value, list):
        return [encode_result(item) for item in value]
    if type(value).__name__ in EVENT_TYPES:
        return {"event": type(value).__name__, "fields": asdict(value)}
    return value


def decode_result(value: Any) -> Any:
    """Inverse of `encode_result`. Raises CallError for an event that this version does not know."""
    if isinstance(value, list):
        return [decode_result(item) for item in value]
    if not isinstance(value, dict) or set(value) != {"event", "fields"}:
        return value
    try:
        return _adapter(value["event"]).validate_python(value["fields"])
    except (KeyError, ValidationError):
        raise CallError(
            f"The device sent an event that this version of Tandem does not know ({value['event']!r:.40}); restart "
            "`tandem device`."
        ) from None


def encode_error(error: TandemError) -> dict[str, Any]:
    """Its class, its sentence and what programs may know of it."""
    return {"kind": type(error).__name__, "sentence": str(error), "fault": asdict(error.fault)}


def decode_error(value: Mapping[str, Any]) -> TandemError:
    """Inverse of `encode_error`; a class that is not known here becomes a CallError."""
    kind = getattr(errors, value["kind"], None)
    is_known = isinstance(kind, type) and issubclass(kind, TandemError)
    fault = dict(value["fault"])
    code = Code(fault.pop("code"))
    return (kind if is_known and kind is not None else CallError)(value["sentence"], code=code, **fault)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(EVENT_TYPES[name])
