"""The token bucket, and a connection whose sender exceeds its rate: it waits, and nothing is lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.transport.sockets import TokenBucket
from tests.unit.transport.conftest import until
from tests.unit.transport.test_sockets import PEER, QUEUE, pair


def test_a_seconds_worth_comes_at_once_and_the_rest_waits() -> None:
    bucket = TokenBucket(1000)
    assert bucket.take(1000, 5.0) == 0
    assert bucket.take(500, 5.0) == 0.5
    assert bucket.take(0, 5.25) == 0.25
    assert bucket.take(0, 5.5) == 0
    assert bucket.take(1000, 100.0) == 0, "it never holds more than a second's worth"
    assert bucket.take(1, 100.0) == pytest.approx(0.001)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 3)), max_size=40))
def test_no_more_than_the_rate_and_one_burst(sent: list[tuple[int, float]]) -> None:
    """Whoever waits as long as it is told has sent at most the rate times the time, and a second's worth."""
    bucket, now_s, total = TokenBucket(1000), 0.0, 0
    for num_bytes, idle_s in sent:
        pause_s = bucket.take(num_bytes, now_s)
        total += num_bytes
        now_s += pause_s
        assert total <= 1000 * (now_s + 1) + 1e-6
        now_s += idle_s


async def test_who_sends_too_much_waits_and_nothing_is_lost(directory: str) -> None:
    rate, frame = 200_000, b"x" * 20_000
    cloud, device, _ = await pair(directory, max_bytes_per_s=rate)
    start_s = time.monotonic()
    device.send(QUEUE, *[frame] * 30)  # 600 kB: a second's worth, then two seconds more
    await until(lambda: len(cloud.received) == 30)
    assert time.monotonic() - start_s > 0.5, (
        "up to 256 KiB are read at once, so the last of it waits for the rest"
    )
    counters = cloud.plane.counters[PEER]
    assert counters.pauses > 0
    assert counters.received_bytes == device.plane.counters[QUEUE].sent_bytes
    cloud.send(PEER, b"still here")  # the other direction is not slowed down
    await until(lambda: device.received == [b"still here"])
