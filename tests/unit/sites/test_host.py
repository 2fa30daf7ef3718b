"""Who may join a served cloud, without a site: who is disconnected, and what a list that cannot be read changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.errors import ConfigError, ProtocolError
from tandem.joining.handshakes import CLOUD_QUEUE, queue_of
from tandem.joining.join_link import Device, DeviceList, JoinLink, client_context, load_identity
from tandem.sites import host
from tandem.sites.host import Address, Admission
from tandem.transport import sockets
from tests.unit.joining.conftest import ABOUT, Phone
from tests.unit.transport.conftest import until


class Owner:
    """An actor that hears nothing."""

    name = CLOUD_QUEUE

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        """Nobody sends any."""

    def on_connected(self, name: str) -> None:
        """It has been noted."""

    def on_lost(self, name: str) -> None:
        """As above."""


class Opened:
    """An admission that is watched, and its list of devices."""

    def __init__(self, folder: Path) -> None:
        self.identity, self.devices = load_identity(folder), DeviceList(folder)
        self.admission = Admission(self.identity, self.devices, Address("127.0.0.1", 0))
        self.admission.about = ABOUT
        self.plane = self.admission.new_plane(Owner())

    def link_for(self, name: str) -> JoinLink:
        """A new device's."""
        return JoinLink("127.0.0.1", self.plane.port, self.identity.fingerprint, self.devices.add(name))

    def is_there(self, name: str) -> bool:
        """Whether a device is connected."""
        return queue_of(name) in self.plane.connected_names


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    cloud = Opened(folder)
    await cloud.plane.start()
    watching = asyncio.create_task(cloud.admission.watch())
    try:
        yield cloud
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await cloud.plane.close()


@contextlib.asynccontextmanager
async def joined(link: JoinLink) -> AsyncIterator[Phone]:
    phone = Phone(link)
    try:
        await phone.join()
        yield phone
    finally:
        await phone.plane.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "RETRY_S", 0.05)
    monkeypatch.setattr(host, "WATCH_S", 0.05)


async def test_a_token_that_was_taken_back_is_out_although_its_name_is_given_again(tmp_path: Path) -> None:
    """Both within one look at the list; whoever holds the old token would stay for good."""
    async with opened(tmp_path) as cloud:
        old = cloud.link_for("laptop")
        async with joined(cloud.link_for("phone")), joined(old):
            await until(lambda: cloud.is_there("laptop") and cloud.is_there("phone"))
            cloud.devices.revoke("laptop")
            new = cloud.link_for("laptop")
            await until(lambda: not cloud.is_there("laptop"))
            async with joined(new):
                await until(lambda: cloud.is_there("laptop"))
                cloud.devices.add("tablet")  # the list is read again
                await asyncio.sleep(0.2)
                assert cloud.is_there("laptop")
                assert cloud.is_there("phone")


async def test_the_owner_reads_who_was_turned_away_but_not_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tandem")
    async with opened(tmp_path) as cloud:
        link = cloud.link_for("phone")
        for _ in range(5):
            with pytest.raises(ProtocolError, match="does not know the token"):
                async with joined(replace(link, secret=bytes(16))):
                    pass
        cloud.devices.revoke("phone")
        with pytest.raises(ProtocolError, match="has revoked"):
            async with joined(link):
                pass
        _, silent = await asyncio.open_connection("127.0.0.1", cloud.plane.port, ssl=client_context())
        silent.close()
        await until(lambda: "shown a valid token" in caplog.text)
    refusals = [line for line in caplog.messages if line.startswith("A connection was refused")]
    strangers = [line for line in refusals if "has not given out" in line]
    assert strangers[0] == (
        "A connection was refused, 1 so far for this reason: A token that this cloud has not given out was shown."
    )
    assert len(strangers) < 5
    assert any("The device 'phone' was revoked on" in line for line in refusals)


async def test_a_list_that_cannot_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process without a free file descriptor, say: the revocation is late, not lost."""
    caplog.set_level(logging.ERROR, "tandem")
    num_failures = 0

    def broken() -> list[Device]:
        nonlocal num_failures
        num_failures += 1
        raise ConfigError("No file can be opened.")

    async with opened(tmp_path) as cloud, joined(cloud.link_for("phone")):
        await until(lambda: cloud.is_there("phone"))
        with monkeypatch.context() as patch:
            cloud.devices.revoke("phone")
            patch.setattr(cloud.devices, "all", broken)
            await until(lambda: num_failures >= 5)
            assert cloud.is_there("phone")
        await until(lambda: not cloud.is_there("phone"))
    assert len(caplog.records) <= num_failures.bit_length() < num_failures
