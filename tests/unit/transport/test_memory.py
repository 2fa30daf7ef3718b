"""Links in memory: the bytes of a socket, in order, in a later turn, and dropped where there is no link."""

from __future__ import annotations

import asyncio

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
