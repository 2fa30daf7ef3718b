"""Links in memory: the bytes of a socket, in order, in a later turn, and dropped where there is no link."""

from __future__ import annotations

import asyncio

import pytest

from tandem.errors import ProtocolError
from tandem.transport.memory import MemoryNetwork
from tandem.transport.port import Endpoint, join_frames


class Owner:
    """An actor that notes what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[object] = []

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        self.log.append((source, frames))

    def on_connected(self, name: str) -> None:
        self.log.append(f"connected to {name}")

    def on_lost(self, name: str) -> None:
        self.log.append(f"lost {name}")


DEVICE, CLOUD = "device/draft_queue", "cloud/draft_queue"


def test_frames_arrive_together_in_order_in_a_later_turn_and_count_as_on_a_socket() -> None:
    async def run() -> None:
        network, device, cloud = MemoryNetwork(), Owner(DEVICE), Owner(CLOUD)
        near, far = network.new_plane(device), network.new_plane(cloud)
        assert await near.start() == Endpoint(DEVICE)
        await near.connect(await far.start())
        assert (device.log, cloud.log) == ([f"connected to {CLOUD}"], [f"connected to {DEVICE}"])
        frames = [b"", b"a" * 200, b"b"]
        for frame in frames:
            near.send(CLOUD, frame)
        near.flush()
        near.flush()
        assert len(cloud.log) == 1, "not within the sender's turn"
        await asyncio.sleep(0)
        assert cloud.log[1:] == [(DEVICE, frames)]
        sent, received = near.counters[CLOUD], far.counters[DEVICE]
        num_bytes = len(join_frames(frames))
        assert (sent.sent_frames, sent.sent_bytes, sent.writes) == (3, num_bytes, 1)
        assert (received.received_frames, received.received_bytes) == (3, num_bytes)
        await near.close()
        await far.close()

    asyncio.run(run())


def test_without_a_link_frames_are_dropped_and_counted_and_a_renewed_one_carries_again() -> None:
    async def run() -> None:
        network, device, cloud = MemoryNetwork(), Owner(DEVICE), Owner(CLOUD)
        near = network.new_plane(device)
        await near.start()
        with pytest.raises(
            ProtocolError, match=r"^device/draft_queue finds no cloud/draft_queue in this process"
        ):
            await near.connect(Endpoint(CLOUD))
        near.send(CLOUD, b"lost")
        near.flush()
        assert near.counters[CLOUD].dropped_frames == 1
        far = network.new_plane(cloud)
        await far.start()
        near.renew(CLOUD)
        near.renew(CLOUD)
        assert near.is_connected(CLOUD)
        assert far.is_connected(DEVICE)
        assert device.log == [f"connected to {CLOUD}"]
        near.send(CLOUD, b"under way")
        near.flush()
        await far.close()
        await asyncio.sleep(0)
        assert cloud.log == [f"connected to {DEVICE}"], "a closed end receives nothing"
        assert device.log[1:] == [f"lost {CLOUD}"]
        assert not near.is_connected(CLOUD)
        await near.close()

    asyncio.run(run())
