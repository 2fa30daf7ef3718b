"""A cloud that serves many devices at one port, and a device that has joined one.

No device can do more than open queries and send frames of them, which `tandem.actors.draft_queue` keeps apart; the
cloud's actors cannot be called from outside. A device's own site runs in its process. The cloud learns of a question
what `SessionSpec.as_for` leaves, and of documents their opaque ids; it cannot call anything here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from tandem.actors.draft_queue import DraftQueueActor, HostQueue
from tandem.config.schema import Config, DevicesConfig
from tandem.engine.pieces import MAX_LISTS, forget_first
from tandem.errors import (
    CallError,
    ClusterError,
    ConfigError,
    GenerationError,
    ProtocolError,
    TandemError,
)
from tandem.joining.handshakes import (
    CLOUD_QUEUE,
    LISTING_S,
    CloudHandshake,
    DeviceHandshake,
    Exchange,
    Leases,
    RetryLater,
    describe_publicly,
    digest_of,
    new_instance,
    queue_of,
    read_about,
)
from tandem.joining.join_link import Device, DeviceList, Identity, JoinLink, client_context, load_identity
from tandem.sites.port import ActorClasses, Actors, Progress, ignore
from tandem.sites.startup import (
    LocalDeployment,
    check_files,
    compare,
    have_common_tokens,
    list_pieces,
    note_pairing,
)
from tandem.system.addresses import max_connections
from tandem.system.paths import cache_folder
from tandem.topology import Party
from tandem.transport.port import Endpoint, PlaneOwner, Refusal, Refused
from tandem.transport.sockets import SocketPlane

_log = logging.getLogger("tandem")
T = TypeVar("T")
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


DIGEST = re.compile("[0-9a-f]{32}")
KEPT_VOCABULARIES = 32
"""Files of others' vocabularies, so that none is sent again."""


def find_vocabulary(folder: Path, digest: str) -> bytes | None:
    """Another party's vocabulary that was kept, by its digest."""
    with contextlib.suppress(OSError):
        kept = (folder / digest).read_bytes() if DIGEST.fullmatch(digest) else b""
        return kept if digest_of(kept) == digest else None
    return None


def keep_vocabulary(folder: Path, vocabulary: bytes) -> None:
    """Keep another party's vocabulary for the next start, if there is room."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / digest_of(vocabulary)).write_bytes(vocabulary)
        oldest = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
        for file in oldest[:-KEPT_VOCABULARIES]:
            file.unlink()


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a cloud listens, and the one by which its devices find it."""

    host: str
    port: int
    public_host: str = ""  # empty: the same
    public_port: int = 0  # 0: the same

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Admission:
    """Admission of devices: who may have a link to the cloud's draft queue, and until when."""

    def __init__(self, identity: Identity, devices: DeviceList, address: Address) -> None:
        self.about: dict[str, Any] | None = None  # what devices receive; None: models are still being loaded
        self.address = address
        self._max_devices = _count_places()
        self._folder = identity.key_file.parent / "vocabularies"
        self.identity = identity
        self.devices = devices
        self._tls = identity.server_context()
        self._plane: SocketPlane | None = None  # until the draft queue opens its end
        self._leases = Leases(lambda name: self.plane.is_connected(name))
        self._tokens: dict[str, str] = {}  # by the draft queue of each device: with which it last came
        self._num_refused: Counter[bytes] = Counter()  # connections, by the answer that they got
        self._noted_s: dict[str, float] = {}  # when a device's joining was last written down
        self.vocabulary = b""  # the cloud's, for devices with another one
        self.actors: Actors = {}  # of the cloud, which list pieces
        self._listing: dict[str, asyncio.Task[dict[str, Any]]] = {}  # by the digest of a device's vocabulary
        self._pieces_of: dict[str, str] = {}  # by draft queue: the list that the device's answers are of

    def new_plane(self, owner: PlaneOwner) -> SocketPlane:
        """A `NewPlane`: the draft queue's end."""
        cast(HostQueue, owner).pieces_of = self._pieces_of
        self._plane = SocketPlane(
            owner,
            handshake=lambda dials, crosses: CloudHandshake(self),
            host=self.address.host,
            port=self.address.port,
            server_tls=self._tls,
            max_bytes_per_s=DevicesConfig.max_bytes_per_s,
        )
        return self._plane

    @property
    def plane(self) -> SocketPlane:
        """All connections to devices."""
        assert self._plane is not None
        return self._plane

    # ---- AdmissionPort ---------------------------------------------------------------------------------------

    def recognise(self, secret: bytes) -> Device | None:
        """The device with a secret, also one that was revoked."""
        return self.devices.recognise(secret)

    def admit(self, device: Device, instance: str) -> RetryLater | None:
        """Let a process of a device in; or why it cannot be taken now."""
        if self.about is None:
            return RetryLater("busy", STARTING_S)
        joined = self.plane.connected_names
        if len(joined) >= self._max_devices and queue_of(device.name) not in joined:
            return RetryLater("busy", BUSY_S)
        later = self._leases.acquire(device.name, instance)
        if later is None:
            self._tokens[queue_of(device.name)] = device.digest
            self._pieces_of.pop(queue_of(device.name), None)
            self._note_joined(device.name)
        return later

    def has_listed(self, device: Device, digest: str) -> bool | None:
        """Whether the pieces of a device's vocabulary are listed; None: it is not here. Raises ProtocolError."""
        if digest not in self._listing and (kept := find_vocabulary(self._folder, digest)) is not None:
            self.learn(kept)
        if (listing := self._listing.get(digest)) is None:
            return None
        if not listing.done():
            return False
        try:
            self._pieces_of[queue_of(device.name)] = listing.result()["pieces"]
        except TandemError as error:
            raise ProtocolError(str(error)) from None
        return True

    def learn(self, vocabulary: bytes) -> None:
        """Take a device's vocabulary, and list its pieces soon."""
        keep_vocabulary(self._folder, vocabulary)
        listed = list_pieces(self.actors, {Party.DEVICE: vocabulary, Party.CLOUD: self.vocabulary})
        self._listing[digest_of(vocabulary)] = asyncio.get_running_loop().create_task(listed)
        forget_first(self._listing, MAX_LISTS)

    def note_refusal(self, error: ProtocolError) -> None:
        """Log why a connection was refused, ever more rarely: whoever connects decides how often this happens."""
        answer = error.frame if isinstance(error, Refusal) else b""
        self._num_refused[answer] += 1
        if (count := self._num_refused[answer]).bit_count() == 1:
            _log.warning("A connection was refused, %d so far for this reason: %s", count, error)

    def _note_joined(self, name: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._noted_s.get(name, -NOTE_S) >= NOTE_S:
            self._noted_s[name] = now_s
            _log.info("The device %s has joined.", name)
            with contextlib.suppress(TandemError):  # when it joined is good to know, no more
                self.devices.note_joined(name)

    # ---- looking after the devices ---------------------------------------------------------------------------

    async def watch(self) -> None:
        """Disconnect devices that are revoked, and renew the certificate in time; runs until it is cancelled."""
        loop, version = asyncio.get_running_loop(), self.devices.version
        renew_s, num_failed, num_logged = loop.time() + RENEW_S, 0, 0
        while True:
            await asyncio.sleep(WATCH_S)
            num_logged = self._log_turned_away(num_logged)
            try:
                if loop.time() > renew_s:
                    renew_s = loop.time() + RENEW_S
                    self.renew()
                if (current := self.devices.version) != version:
                    self._disconnect_revoked()
                    version = current  # not before: a list that could not be read is read again
            except (TandemError, ssl.SSLError, OSError) as error:
                num_failed += 1
                if num_failed.bit_count() == 1:
                    failed = "The cloud could not look after its devices, %d times so far: %s"
                    _log.error(failed, num_failed, error)

    def _log_turned_away(self, num_logged: int) -> int:
        """Log how many connections showed no token, at each doubling. Returns the number last logged."""
        number = self.plane.num_turned_away
        if number.bit_length() <= num_logged.bit_length():
            return num_logged
        _log.warning("Connections that ended before they had shown a valid token: %d so far.", number)
        return number

    def _disconnect_revoked(self) -> None:
        """Disconnect revoked devices by token: a name may have been given to another device since."""
        welcome = {queue_of(device.name): device.digest for device in self.devices.all() if device.is_welcome}
        for name in self.plane.connected_names:
            if welcome.get(name) != self._tokens.get(name):
                _log.warning("%s was revoked and is disconnected.", name)
                self.plane.drop(name)

    def renew(self) -> None:
        """Connections that are made from now on see the certificate as it is on disk, renewed if it is time."""
        renewed = load_identity(self.identity.key_file.parent)
        self._tls.load_cert_chain(renewed.certificate_file, renewed.key_file)


def _count_places() -> int:
    """How many devices may be connected at once: no more than this process may have connections."""
    if (most := max_connections()) < DevicesConfig.max_devices:
        _log.warning(
            "At most %d devices are connected at once, not %d, since this process may not open more files; raise its "
            "limit (`ulimit -n`).",
            most,
            DevicesConfig.max_devices,
        )
    return min(most, DevicesConfig.max_devices)


@dataclass(kw_only=True)
class ServedCloud(LocalDeployment):
    """The cloud's site and its port."""

    admission: Admission
    watching: asyncio.Task[None] | None = None  # ends with the event loop

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return self.admission.plane.port

    @property
    def public_address(self) -> tuple[str, int]:
        """Host and port that devices dial."""
        address = self.admission.address
        return address.public_host or address.host, address.public_port or self.port

    def link_for(self, name: str) -> JoinLink:
        """The join link of a new device. Raises ConfigError."""
        fingerprint = self.admission.identity.fingerprint
        return JoinLink(*self.public_address, fingerprint, self.admission.devices.add(name))

    def list_actors(self) -> list[dict[str, object]]:
        """Every actor, as `tandem status` shows it."""
        return self.loop.run(self.sites[Party.CLOUD].status())


@contextlib.contextmanager
def served(
    config: Config,
    address: Address,
    folder: Path,
    progress: Progress = ignore,
    actor_classes: ActorClasses | None = None,
) -> Iterator[ServedCloud]:
    """Start a cloud's site and its port, with the keys and devices of `folder`. Raises TandemError.

    progress: called with one line for each stage. actor_classes: as in `Tandem.launch`; a draft queue derives from
    HostQueue.
    """
    config = config.resolve(Path.cwd())
    # Kept turns would make an answer come sooner where another device has asked the same, and so tell of it.
    config = replace(config, cloud=replace(config.cloud, turns_max_bytes=0))
    check_files(config, (Party.CLOUD,), progress)
    identity, devices = load_identity(folder), DeviceList(folder)
    devices.all()  # a damaged list is an error now, not when somebody joins
    cloud = ServedCloud(admission=Admission(identity, devices, address))
    try:
        cloud.loop.run(_start(cloud, config, progress, actor_classes))
        yield cloud
    finally:
        cloud.close()


async def _start(
    cloud: ServedCloud, config: Config, progress: Progress, actor_classes: ActorClasses | None
) -> None:
    admission = cloud.admission
    classes: ActorClasses = {"draft_queue": HostQueue, **(actor_classes or {})}
    try:
        await cloud.start_alone(Party.CLOUD, config, admission.new_plane, progress, classes)
    except CallError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise ClusterError(
            f"The cloud cannot listen at {admission.address} ({os.strerror(error.__cause__.errno or 0)}); stop what "
            "listens there, or choose another port with --listen."
        ) from None
    about = cloud.described[Party.CLOUD] | {"max_queries": config.devices.max_queries}
    admission.actors = cloud.sites[Party.CLOUD].actors
    try:
        admission.vocabulary = await admission.actors["decoder"].call("vocabulary")
        about |= {"pieces_digest": digest_of(admission.vocabulary)}
    except GenerationError as error:
        progress(f"vocabularies: {error}")
    admission.about = describe_publicly(about)
    cloud.watching = asyncio.get_running_loop().create_task(admission.watch(), name="admission")


FIRST_JOIN_S = 10.0
"""How long the first attempt to reach the cloud may take before the device continues alone, or fails."""


@dataclass(kw_only=True)
class JoinedDevice(LocalDeployment):
    """The device's site and its link. The cloud's site cannot be asked."""

    link: JoinLink
    plane: SocketPlane | None = None
    instance: str = field(default_factory=new_instance)  # tells this process from others with the same link
    vocabulary: asyncio.Task[bytes] | None = None  # this party's, for a cloud with another one
    # of a cloud's vocabulary, and of this party's and its pieces
    listing: tuple[bytes, asyncio.Task[dict[str, Any]]] | None = None

    @property
    def queue(self) -> DraftQueueActor:
        """The draft queue, which has the link; for the event loop."""
        return cast(DraftQueueActor, self.sites[Party.DEVICE].actors["draft_queue"])

    async def status(self, config: Config) -> dict[str, Any]:
        """The device's actors, and whether the cloud is there."""
        is_there = self.plane is not None and self.plane.is_connected(CLOUD_QUEUE)
        why_not = f": {self.refusal.rstrip('.')}" if self.refusal else ""
        address = f"joined to {self.link.address}" + ("" if is_there else f" (not connected now{why_not})")
        connected = [Party.CLOUD] if is_there else []
        return await super().status(config) | {"cluster": address, "connected": connected}

    @property
    def refusal(self) -> str | None:
        """The sentence with which the cloud has refused this device since the last connection, if any."""
        return None if self.plane is None else self.plane.refusal_of(CLOUD_QUEUE)

    def new_plane(self, owner: PlaneOwner) -> SocketPlane:
        """A `NewPlane`: the draft queue's end."""
        self.plane = SocketPlane(
            owner,
            handshake=lambda dials, crosses: DeviceHandshake(
                self.link, self.instance, self._meet, self.described[Party.DEVICE]["vocabulary_fingerprint"]
            ),
            client_tls=client_context(),
        )
        return self.plane

    def _meet(self, greeting: dict[str, Any]) -> Exchange | None:
        """Take what the cloud says of itself. Raises ProtocolError where the two cannot answer together."""
        about = read_about(greeting)
        description = about.as_description() | {"model": f"at {self.link.address}"}
        described = {Party.DEVICE: self.described[Party.DEVICE], Party.CLOUD: description}
        try:
            compare(described, may_share=bool(about.pieces_digest))
        except ClusterError as error:
            raise ProtocolError(str(error)) from None
        exchange = None if have_common_tokens(described) else self._exchange(about.pieces_digest, description)
        self.described[Party.CLOUD] = description
        if about.max_queries is not None:
            self.queue.limit_queries(about.max_queries)
        return exchange

    def _exchange(self, digest: str, description: dict[str, Any]) -> Exchange:
        """What is left to do about another vocabulary. Raises Refused until what can be done here is done."""
        actors, loop = self.sites[Party.DEVICE].actors, asyncio.get_running_loop()
        if self.vocabulary is None:
            self.vocabulary = loop.create_task(actors["decoder"].call("vocabulary"))
        own, folder = self._result(self.vocabulary), cache_folder() / "vocabularies"
        if (kept := find_vocabulary(folder, digest)) is None:
            return Exchange(own, digest, partial(self._learn, folder))
        if self.listing is None or self.listing[0] != kept:
            vocabularies: dict[str, bytes] = {Party.DEVICE: own, Party.CLOUD: kept}
            self.listing = kept, loop.create_task(list_pieces(actors, vocabularies))
        added = self._result(self.listing[1])
        self.described[Party.DEVICE] |= added
        description |= added
        return Exchange(own, "", lambda vocabulary: None)

    def _learn(self, folder: Path, vocabulary: bytes) -> None:
        keep_vocabulary(folder, vocabulary)
        raise Refused("The vocabularies of device and cloud are being exchanged.", LISTING_S)

    @staticmethod
    def _result(task: asyncio.Task[T]) -> T:
        if not task.done():
            raise Refused("The pieces of two vocabularies are being listed.", LISTING_S)
        try:
            return task.result()
        except TandemError as error:
            raise ProtocolError(str(error)) from None


def join(
    link: JoinLink, config: Config, progress: Progress, actor_classes: ActorClasses | None = None
) -> JoinedDevice:
    """Start the device's site and join; see `Tandem.join`. Raises TandemError; nothing runs then."""
    if config.is_federated:
        raise ConfigError(
            'A join link connects a device to a cloud, but decoding.mode is "federated"; choose "dual" or '
            '"speculative".'
        )
    config = config.resolve(Path.cwd())
    check_files(config, (Party.DEVICE,), progress)
    device = JoinedDevice(link=link)
    try:
        device.loop.run(_join(device, config, progress, actor_classes))
    except BaseException:
        device.close()
        raise
    note_pairing(config, device.described, progress)
    return device


async def _join(
    device: JoinedDevice, config: Config, progress: Progress, actor_classes: ActorClasses | None
) -> None:
    await device.start_alone(Party.DEVICE, config, device.new_plane, progress, actor_classes)
    # until the cloud says how many, its default: those that are begun without it must fit when it comes
    device.queue.limit_queries(Config().devices.max_queries)
    where = Endpoint(CLOUD_QUEUE, None, device.link.host, device.link.port)
    try:
        async with asyncio.timeout(FIRST_JOIN_S):
            await device.queue.connect_peers([where])
        progress(f"link: joined the cloud at {device.link.address}")
    except TimeoutError:
        unanswered = (
            f"No cloud answers at {device.link.address}; check that `tandem cloud serve` runs there and that its port "
            "can be reached from here."
        )
        sentence = (device.refusal or unanswered).rstrip(".")
        if config.link.on_peer_loss == "fail":
            raise ClusterError(f"{sentence}.") from None
        goes_on = (
            "the device answers by itself" if config.link.on_peer_loss == "continue" else "questions wait"
        )
        progress(f"link: {sentence}; until then {goes_on}")
