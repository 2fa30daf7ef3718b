"""A device that has joined a cloud: its own site in this process, and one connection that it dialled.

The cloud learns of a question what `SessionSpec.as_for` leaves, and of documents their opaque ids; it cannot call
anything here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tandem.actors.draft_queue import DraftQueueActor
from tandem.config.schema import Config
from tandem.errors import ClusterError, ConfigError, ProtocolError
from tandem.joining.about import read_about
from tandem.joining.handshakes import CLOUD_QUEUE, DeviceHandshake, new_instance
from tandem.joining.identity import client_context
from tandem.joining.join_link import JoinLink
from tandem.sites.local import LocalDeployment
from tandem.sites.port import ActorClasses, Progress
from tandem.sites.startup import check_files, compare, note_pairing
from tandem.topology import Party
from tandem.transport.port import Endpoint, PlaneOwner
from tandem.transport.sockets import SocketPlane

FIRST_JOIN_S = 10.0
"""How long the first attempt to reach the cloud may take before the device continues alone, or fails."""


@dataclass(kw_only=True)
class JoinedDevice(LocalDeployment):
    """The device's site and its link. The cloud's site cannot be asked."""

    link: JoinLink
    plane: SocketPlane | None = None
    instance: str = field(default_factory=new_instance)  # tells this process from others with the same link

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
            handshake=lambda dials, crosses: DeviceHandshake(self.link, self.instance, self._meet),
            client_tls=client_context(),
        )
        return self.plane

    def _meet(self, told: dict[str, Any]) -> None:
        """What the cloud says of itself. Raises ProtocolError where the two cannot answer together."""
        about = read_about(told)
        description = about.as_description() | {"model": f"at {self.link.address}"}
        try:
            compare({Party.DEVICE: self.described[Party.DEVICE], Party.CLOUD: description})
        except ClusterError as error:
            raise ProtocolError(str(error)) from None
        self.described[Party.CLOUD] = description
        if about.max_queries is not None:
            self.queue.limit_queries(about.max_queries)


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
        device.loop.run(_start(device, config, progress, actor_classes))
    except BaseException:
        device.close()
        raise
    note_pairing(config, device.described, progress)
    return device


async def _start(
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
