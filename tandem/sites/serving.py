"""A cloud that serves many devices: one site, and a port at which devices that it knows may join.

    device --TLS: token, frames--> HostingQueue of the cloud's site

No device can do more than open queries and send frames of them; the cloud's actors cannot be called from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem.actors.hosting_queue import HostingQueue
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, ProtocolError, TandemError
from tandem.joining.about import describe_publicly
from tandem.joining.devices import Device, DeviceList
from tandem.joining.handshakes import CloudHandshake, Holders, Obstacle, queue_of
from tandem.joining.identity import Identity, load_identity
from tandem.joining.join_link import JoinLink
from tandem.sites.deployment import ActorClasses, Progress
from tandem.sites.site import Site
from tandem.sites.wiring import check_files, start_actors
from tandem.system.loop_thread import LoopThread
from tandem.topology import Party
from tandem.transport.handshake import Refusal
from tandem.transport.port import PlaneOwner
from tandem.transport.sockets import SocketPlane

_log = logging.getLogger("tandem")
WATCH_S = 1.0
"""Between two looks at the list of devices: a revoked one is disconnected by then."""
RENEW_S = 86_400.0
"""Between two looks at the certificate's end."""
STARTING_S = 1.0
"""When a device may come back while models are being loaded. It does where a question waits there, else more rarely."""
NOTE_S = 60.0
"""Between two notes that a device has joined: each is written to disk, and a device may come back as it likes."""
BUSY_S = 30.0
"""When a device may come back while there are as many as may be."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a cloud listens, and under what address its devices find it."""

    host: str
    port: int
    public_host: str = ""  # empty: the same
    public_port: int = 0  # 0: the same

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class LoggedHandshake(CloudHandshake):
    """The cloud's end, whose refusals the cloud's owner can read."""

    def __init__(self, note: Callable[[ProtocolError], None], *arguments: Any) -> None:
        """note: called with each refusal. arguments: of a CloudHandshake."""
        super().__init__(*arguments)
        self._note = note

    def receive(self, frame: bytes) -> tuple[list[bytes], str | None]:
        """As every cloud's."""
        try:
            return super().receive(frame)
        except ProtocolError as error:
            self._note(error)
            raise


class Door:
    """Who may come in: the cloud's end of all links to devices."""

    def __init__(self, config: Config, identity: Identity, devices: DeviceList, address: Address) -> None:
        self.about: dict[str, Any] | None = None  # what devices receive once the models are loaded
        self.plane: SocketPlane | None = None
        self.watching: asyncio.Task[None] | None = None  # ends with the event loop
        self._config = config
        self._identity = identity
        self._devices = devices
        self.address = address
        self._tls = identity.server_context()
        self._holders = Holders(lambda name: self.plane is not None and self.plane.is_connected(name))
        self._let_in: dict[str, str] = {}  # by the draft queue of each device: with which token it last came
        self._num_refused: Counter[bytes] = Counter()  # connections, by what they were told
        self._noted_s: dict[str, float] = {}  # when a device's joining was last written down

    def open(self, owner: PlaneOwner) -> SocketPlane:
        """An `OpenLink`: the draft queue's end."""
        self.plane = SocketPlane(
            owner.name,
            owner.on_frames,
            handshake=lambda dials, crosses: LoggedHandshake(
                self.note_refusal,
                self._devices.recognise,
                self.about or {},
                self.find_obstacle,
                self._welcome,
            ),
            on_connected=lambda name: self._connected(owner, name),
            on_lost=owner.on_lost,
            host=self.address.host,
            port=self.address.port,
            server_tls=self._tls,
            max_bytes_per_s=self._config.devices.max_bytes_per_s,
        )
        return self.plane

    def find_obstacle(self, device: str, instance: str) -> Obstacle | None:
        """Why a process of a device cannot be taken now; None if it can."""
        if self.about is None:
            return Obstacle("busy", STARTING_S)
        assert self.plane is not None
        joined = self.plane.connected_names
        is_full = len(joined) >= self._config.devices.max_devices and queue_of(device) not in joined
        return Obstacle("busy", BUSY_S) if is_full else self._holders.take(device, instance)

    async def watch(self) -> None:
        """Disconnect devices that are revoked, and renew the certificate in time; runs until it is cancelled."""
        loop, version = asyncio.get_running_loop(), self._devices.version
        renew_s, num_failed, num_logged = loop.time() + RENEW_S, 0, 0
        while True:
            await asyncio.sleep(WATCH_S)
            num_logged = self._log_turned_away(num_logged)
            try:
                if loop.time() > renew_s:
                    renew_s = loop.time() + RENEW_S
                    self.renew()
                if (current := self._devices.version) != version:
                    self._disconnect_revoked()
                    version = current  # not before: a list that could not be read is read again
            except (TandemError, ssl.SSLError, OSError) as error:
                num_failed += 1
                if num_failed.bit_count() == 1:
                    _log.error(
                        "The cloud could not look after its devices, %d times so far: %s", num_failed, error
                    )

    def note_refusal(self, error: ProtocolError) -> None:
        """Log why a connection was refused, ever more rarely: whoever connects decides how often this happens."""
        told = error.frame if isinstance(error, Refusal) else b""
        self._num_refused[told] += 1
        if self._num_refused[told].bit_count() == 1:
            _log.warning(
                "A connection was refused, %d so far for this reason: %s", self._num_refused[told], error
            )

    def _log_turned_away(self, num_logged: int) -> int:
        """Also those that showed nothing that could be refused; at each doubling. Returns the number last logged."""
        assert self.plane is not None
        number = self.plane.num_turned_away
        if number.bit_length() <= num_logged.bit_length():
            return num_logged
        _log.warning("Connections that ended before they had shown a valid token: %d so far.", number)
        return number

    def _welcome(self, device: Device) -> None:
        self._let_in[queue_of(device.name)] = device.digest

    def _connected(self, owner: PlaneOwner, name: str) -> None:
        device, now_s = name[1:].partition("/")[0], asyncio.get_running_loop().time()
        if now_s - self._noted_s.get(device, -NOTE_S) >= NOTE_S:
            self._noted_s[device] = now_s
            _log.info("The device %s has joined.", device)
            with contextlib.suppress(TandemError):  # when it joined is good to know, no more
                self._devices.note_joined(device)
        owner.on_connected(name)

    def _disconnect_revoked(self) -> None:
        """By token: a name may have been given to another device since."""
        assert self.plane is not None
        welcome = {
            queue_of(device.name): device.digest for device in self._devices.all() if device.is_welcome
        }
        for name in self.plane.connected_names:
            if welcome.get(name) != self._let_in.get(name):
                _log.warning("%s was revoked and is disconnected.", name)
                self.plane.drop(name)

    def renew(self) -> None:
        """Connections that are made from now on see the certificate as it is on disk, renewed if it is time."""
        renewed = load_identity(self._identity.key_file.parent)
        self._tls.load_cert_chain(renewed.certificate_file, renewed.key_file)


@dataclass
class ServedCloud:
    """A cloud that runs in this process; close it, or use `served`."""

    loop: LoopThread
    site: Site
    door: Door
    identity: Identity
    devices: DeviceList
    address: Address
    described: dict[str, Any]

    @property
    def port(self) -> int:
        """At which it listens."""
        assert self.door.plane is not None
        return self.door.plane.port

    @property
    def public_address(self) -> tuple[str, int]:
        """Host and port that devices dial."""
        return self.address.public_host or self.address.host, self.address.public_port or self.port

    def link_for(self, name: str) -> JoinLink:
        """The join link of a new device. Raises ConfigError."""
        return JoinLink(*self.public_address, self.identity.fingerprint, self.devices.add(name))

    def status(self) -> list[dict[str, object]]:
        """Every actor, as `tandem status` shows it."""
        return self.loop.run(self.site.status())


@contextlib.contextmanager
def served(
    config: Config,
    address: Address,
    folder: Path,
    progress: Progress = lambda line: None,
    actor_classes: ActorClasses | None = None,
) -> Iterator[ServedCloud]:
    """Start a cloud's site and its port, with the keys and devices of `folder`. Raises TandemError.

    progress: called with one line for each stage. actor_classes: as in `Tandem.launch`; a draft queue derives from
    HostingQueue.
    """
    config = config.resolve(Path.cwd())
    # Kept turns would make an answer come sooner where another device has asked the same, and so tell of it.
    config = replace(config, cloud=replace(config.cloud, turns_max_bytes=0))
    check_files(config, (Party.CLOUD,), progress)
    identity, devices = load_identity(folder), DeviceList(folder)
    devices.all()  # a damaged list is an error now, not when somebody joins
    door = Door(config, identity, devices, address)
    loop = LoopThread()
    site: Site | None = None
    try:
        site, described = loop.run(_start(config, door, progress, actor_classes))
        yield ServedCloud(loop, site, door, identity, devices, address, described)
    finally:
        if site is not None:
            with contextlib.suppress(TandemError):
                loop.run(site.stop())
        loop.close()


async def _start(
    config: Config, door: Door, progress: Progress, actor_classes: ActorClasses | None
) -> tuple[Site, dict[str, Any]]:
    loop = asyncio.get_running_loop()
    site = Site(Party.CLOUD, config, door.open, loop, {"draft_queue": HostingQueue, **(actor_classes or {})})
    limit_s = config.cluster.start_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            described = await start_actors({Party.CLOUD: site.handles}, progress)
    except TimeoutError:
        await site.stop()
        raise ClusterError(
            f"The cloud must be ready within {limit_s:g} s but is not; raise cluster.start_timeout_s."
        ) from None
    except CallError as error:
        await site.stop()
        if not isinstance(error.__cause__, OSError):
            raise
        raise ClusterError(
            f"The cloud cannot listen at {door.address} ({os.strerror(error.__cause__.errno or 0)}); stop what "
            "listens there, or choose another port with --listen."
        ) from None
    except BaseException:
        await site.stop()
        raise
    door.about = describe_publicly(described[Party.CLOUD] | {"max_queries": config.devices.max_queries})
    door.watching = loop.create_task(door.watch(), name="door")
    return site, described[Party.CLOUD]
