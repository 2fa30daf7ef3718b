"""Keys made once, and a cloud and a device on loopback with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import ProtocolError
from tandem.joining.handshakes import (
    CLOUD_QUEUE,
    CloudHandshake,
    DeviceHandshake,
    Leases,
    RetryLater,
    new_instance,
)
from tandem.joining.join_link import Device, DeviceList, Identity, JoinLink, client_context, load_identity
from tandem.transport import sockets
from tandem.transport.port import Endpoint
from tandem.transport.sockets import SocketPlane
from tests.unit.transport.conftest import PLANES
from tests.unit.transport.conftest import pytest_pyfunc_call as pytest_pyfunc_call

ABOUT = {"vocabulary_fingerprint": "abc", "window": 8}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry and give up sooner than in earnest."""
    monkeypatch.setattr(sockets, "RETRY_S", 0.05)
    monkeypatch.setattr(sockets, "DIAL_LIMIT_S", 1.0)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """Of a cloud."""
    return load_identity(tmp_path_factory.mktemp("identity"))


class Cloud:
    """The end of a cloud that listens, and what it heard."""

    name = CLOUD_QUEUE
    about = ABOUT

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.identity = identity
        self.devices = DeviceList(folder)
        self.retry_after_s: float | None = None
        self.frames: list[tuple[str, bytes]] = []
        self.lost: list[str] = []
        self.port = 0
        self._leases = Leases(lambda name: self.plane.is_connected(name))
        self.plane = self._make_plane()

    def recognise(self, secret: bytes) -> Device | None:
        return self.devices.recognise(secret)

    def admit(self, device: Device, instance: str) -> RetryLater | None:
        if self.retry_after_s is not None:
            return RetryLater("busy", self.retry_after_s)
        return self._leases.acquire(device.name, instance)

    def note_refusal(self, error: ProtocolError) -> None:
        pass

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        self.frames += [(source, frame) for frame in frames]

    def on_connected(self, name: str) -> None:
        pass

    def on_lost(self, name: str) -> None:
        self.lost.append(name)

    def _make_plane(self) -> SocketPlane:
        plane = SocketPlane(
            self,
            handshake=lambda dials, crosses: CloudHandshake(self),
            host="127.0.0.1",
            port=self.port,
            server_tls=self.identity.server_context(),
        )
        PLANES.append(plane)
        return plane

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

    name = "device/draft_queue"

    def __init__(self, link: JoinLink, instance: str = "") -> None:
        """instance: of its process, another one if empty."""
        self.link = link
        instance = instance or new_instance()
        self.welcomes: list[dict[str, Any]] = []
        self.frames: list[bytes] = []
        self.plane = SocketPlane(
            self,
            handshake=lambda dials, crosses: DeviceHandshake(link, instance, self.welcomes.append),
            client_tls=client_context(),
        )
        PLANES.append(self.plane)

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        self.frames += frames

    def on_connected(self, name: str) -> None:
        pass

    def on_lost(self, name: str) -> None:
        pass

    async def join(self) -> None:
        """As far as the welcome. Raises ProtocolError."""
        await self.plane.start()
        await self.plane.connect(Endpoint(CLOUD_QUEUE, None, self.link.host, self.link.port))


@pytest.fixture
def cloud(identity: Identity, tmp_path: Path) -> Iterator[Cloud]:
    """Not started yet."""
    return Cloud(identity, tmp_path / "keys")
