"""Messages between actors of one process: in order, none within another's handler, a failure is its receiver's own.
And frames between two sites there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tandem.transport.memory import Bus, MemoryNetwork
from tandem.transport.port import Endpoint, join_frames


class Plane:
    """A data plane that notes what is written, in which write."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.waiting: list[tuple[str, bytes]] = []

    def send(self, to: str, frame: bytes) -> None:
        self.waiting.append((to, frame))

    def flush(self) -> None:
        self.log.append(("written", *self.waiting))
        self.waiting = []


def member(bus: Bus, name: str, act: Callable[[Any], None]) -> None:
    bus.join(name, lambda message, source: act(message))


def test_no_handler_runs_within_another_and_messages_keep_their_order() -> None:
    """Random fan-out among three actors, against a queue."""
    for seed in range(200):
        rng, bus = random.Random(seed), Bus()
        received: list[int] = []
        expected: list[int] = []
        running = 0
        fresh = iter(range(1, 40))

        def act(message: int, me: str) -> None:
            nonlocal running
            assert running == 0, "a handler was called within another"
            running += 1
            received.append(message)  # noqa: B023
            for number in [next(fresh, None) for _ in range(rng.randrange(4))]:  # noqa: B023
                if number is not None:
                    expected.append(number)  # noqa: B023
                    bus.post(me, rng.choice("abc"), number)  # noqa: B023
            running -= 1

        for name in "abc":
            bus.join(name, lambda message, source, me=name: act(message, me))  # type: ignore[misc]
        bus.post("outside", "a", 0)
        assert received == [0, *expected], seed


def test_a_failure_is_its_receivers_own(caplog: pytest.LogCaptureFixture) -> None:
    bus, received = Bus(), []

    def fail(message: Any) -> None:
        raise ValueError("broken")

    member(bus, "bad", fail)
    member(bus, "good", received.append)
    with bus.batch():
        bus.post("x", "bad", 1)
        bus.post("x", "good", 2)
    bus.post("x", "good", 3)
    assert received == [2, 3]
    assert "bad failed on a int from x" in caplog.text


def test_frames_of_a_turn_leave_in_one_write_before_messages_are_handled() -> None:
    bus, log = Bus(), []
    plane: Any = Plane(log)

    def act(message: int) -> None:
        log.append(message)
        bus.send(plane, "peer", b"3")

    member(bus, "a", act)
    with bus.batch():
        bus.send(plane, "peer", b"1")
        bus.post("x", "a", 7)
        bus.send(plane, "peer", b"2")
        assert not log
    assert log == [("written", ("peer", b"1"), ("peer", b"2")), 7, ("written", ("peer", b"3"))]


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
