"""A device that runs in another process of this user (`tandem device`), asked over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem import __version__
from tandem.actors.handles import Call, Handles
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError
from tandem.sites.deployment import Progress
from tandem.sites.local_calls import (
    MAX_LINE_BYTES,
    decode_error,
    decode_result,
    read_line,
    socket_folder,
    write_line,
)
from tandem.sites.offering import SOCKET
from tandem.system.loop_thread import LoopThread
from tandem.topology import Party
from tandem.transport.sockets import shorten

CONNECT_LIMIT_S = 5.0


def is_device_running(folder: Path | None = None) -> bool:
    """Whether a device listens for local commands. folder: where; default: that of this user."""
    path = (folder or socket_folder()) / SOCKET
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError), shorten(str(path)) as short:
        probe.connect(short)
        return True
    return False


@dataclass
class AttachedDevice:
    """A `Deployment` in another process; closing it leaves that running."""

    loop: LoopThread
    pid: int = 0
    settings: dict[str, str] = field(default_factory=dict)  # that it was started with
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: tuple[()] = ()
    socket_folder: str = ""

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def parties(self) -> dict[str, Handles]:
        """Those actors of the device that commands need."""
        handles: Handles = {role: RemoteActor(self, role) for role in ("draft_queue", "retriever", "decoder")}
        return {Party.DEVICE: handles}

    async def status(self, config: Config) -> dict[str, Any]:
        """As the device reports it; its own settings count."""
        status: dict[str, Any] = await self.start("site", "status", ())
        return status

    def explain_loss(self, error: CallError, config: Config) -> str:
        """The error says it all."""
        return str(error)

    def close(self) -> None:
        """Leave the device; it cancels what is still open here."""
        self.loop.run(self._disconnect())
        self.loop.close()

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
        self.described.update(hello["described"])
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    def start(self, actor: str, method: str, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        """Begin a call, in the order of these calls, from any event loop."""
        call = asyncio.run_coroutine_threadsafe(self._request(actor, method, arguments), self.loop.event_loop)

        async def wait() -> Any:
            return await asyncio.wrap_future(call)

        return Call(wait)

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
        self.described.update(values.get("described", {}))
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

    async def _disconnect(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.transport.abort()


class RemoteActor:
    """An actor of the device."""

    def __init__(self, device: AttachedDevice, role: str) -> None:
        self._device = device
        self._role = role

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        return RemoteMethod(self._device, self._role, name)


@dataclass(frozen=True, slots=True)
class RemoteMethod:
    """A method of a RemoteActor."""

    device: AttachedDevice
    role: str
    name: str

    def remote(self, *arguments: Any) -> Awaitable[Any]:
        """Start a call."""
        return self.device.start(self.role, self.name, arguments)


def attach(progress: Progress, folder: Path | None = None) -> AttachedDevice:
    """Ask the device that `tandem device` runs here. Raises ClusterError if there is none, or of another version."""
    device = AttachedDevice(LoopThread())
    try:
        device.loop.run(device.connect((folder or socket_folder()) / SOCKET))
    except BaseException:
        device.close()
        raise
    cloud = device.described.get(Party.CLOUD, {}).get("model", "no cloud so far")
    progress(f"device: process {device.pid} is running here (tandem device), {cloud}")
    return device
