"""Keys made once, and a cloud and a device on loopback with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.joining.devices import DeviceList
from tandem.joining.handshakes import (
    CLOUD_QUEUE,
    CloudHandshake,
    DeviceHandshake,
    Holders,
    Obstacle,
    new_instance,
)
from tandem.joining.identity import Identity, client_context, load_identity
from tandem.joining.join_link import JoinLink
from tandem.transport import sockets
from tandem.transport import sockets as dialling
from tandem.transport.port import Endpoint
from tandem.transport.sockets import SocketPlane

ABOUT = {"vocabulary_fingerprint": "abc", "window": 8}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry and give up sooner than in earnest."""
    monkeypatch.setattr(dialling, "RETRY_S", 0.05)
    monkeypatch.setattr(sockets, "DIAL_LIMIT_S", 1.0)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """Of a cloud."""
    return load_identity(tmp_path_factory.mktemp("identity"))


class Cloud:
    """The end of a cloud that listens, and what it heard."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.identity = identity
        self.devices = DeviceList(folder)
        self.retry_after_s: float | None = None
        self.frames: list[tuple[str, bytes]] = []
        self.lost: list[str] = []
        self.port = 0
        self._holders = Holders(lambda name: self.plane.is_connected(name))
        self.plane = self._make_plane()

    def _find_obstacle(self, device: str, instance: str) -> Obstacle | None:
        if self.retry_after_s is not None:
            return Obstacle("busy", self.retry_after_s)
        return self._holders.take(device, instance)

    def _make_plane(self) -> SocketPlane:
        return SocketPlane(
            CLOUD_QUEUE,
            lambda source, frames: self.frames.extend((source, frame) for frame in frames),
            handshake=lambda dials, crosses: CloudHandshake(
                self.devices.recognise, ABOUT, self._find_obstacle
            ),
            host="127.0.0.1",
            port=self.port,
            server_tls=self.identity.server_context(),
            on_lost=self.lost.append,
        )

    async def start(self) -> None:
        """Listen on a free port, or again on the one it had."""
        self.plane = self._make_plane()
        endpoint = await self.plane.start()
        assert endpoint.port is not None
        self.port = endpoint.port

    def link_for(self, name: str) -> JoinLink:
        """A new device's."""
        return JoinLink("127.0.0.1", self.port, self.identity.fingerprint, self.devices.add(name))


class Phone:
    """The end of a device, and what it heard."""

    def __init__(self, link: JoinLink, instance: str = "") -> None:
        """instance: of its process, another one if empty."""
        self.link = link
        instance = instance or new_instance()
        self.welcomes: list[dict[str, Any]] = []
        self.frames: list[bytes] = []
        self.plane = SocketPlane(
            "device/draft_queue",
            lambda source, frames: self.frames.extend(frames),
            handshake=lambda dials, crosses: DeviceHandshake(link, instance, self.welcomes.append),
            client_tls=client_context(),
        )

    async def join(self) -> None:
        """As far as the welcome. Raises ProtocolError."""
        await self.plane.start()
        await self.plane.connect(Endpoint(CLOUD_QUEUE, None, self.link.host, self.link.port))


@pytest.fixture
def cloud(identity: Identity, tmp_path: Path) -> Iterator[Cloud]:
    """Not started yet."""
    return Cloud(identity, tmp_path / "keys")
