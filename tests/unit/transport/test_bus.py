"""Messages between actors of one process: in order, none within another's handler, a failure is its receiver's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tandem.transport.memory import Bus


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
