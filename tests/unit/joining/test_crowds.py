"""Many connections that never show a token: bounded, counted, and those who are welcome still come in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from tandem.joining.identity import client_context
from tandem.transport import sockets
from tests.unit.joining.conftest import Cloud, Phone
from tests.unit.transport.conftest import until


@contextlib.contextmanager
def crowd(port: int, num_connections: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, not even TLS."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(num_connections)
        ]


async def test_silent_connections_do_not_pile_up_before_tls(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's own servers would hold all of them, with a quarter of a megabyte each, until the limit of time."""
    monkeypatch.setattr(sockets, "MAX_UNPROVEN", 8)
    await cloud.start()
    phone = Phone(cloud.link_for("phone"))
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(lambda: stack.enter_context(crowd(cloud.port, 100)))
        await until(lambda: cloud.plane.num_turned_away >= 92)
        assert cloud.plane.num_connections <= 8
        await asyncio.wait_for(phone.join(), 60)
        phone.plane.send("cloud/draft_queue", b"frame")
        phone.plane.flush()
        await until(lambda: cloud.frames)
    await phone.plane.close()
    await until(lambda: cloud.plane.num_turned_away >= 100)


async def test_a_crowd_that_comes_at_once_does_not_pile_up(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All wait to be accepted before the first is: nothing else of the event loop's comes in between."""
    monkeypatch.setattr(sockets, "MAX_UNPROVEN", 8)
    await cloud.start()
    most = 0
    with crowd(cloud.port, 100):
        for _ in range(1000):
            await asyncio.sleep(0)
            most = max(most, cloud.plane.num_connections)
        await until(lambda: cloud.plane.num_turned_away == 92)
        assert cloud.plane.num_connections == 8
    assert most <= 9, "the newest is there before the oldest has left"
    await until(lambda: cloud.plane.num_turned_away == 100)


async def test_who_leaves_tls_without_a_token_is_counted(cloud: Cloud) -> None:
    await cloud.start()
    _, silent = await asyncio.open_connection("127.0.0.1", cloud.port, ssl=client_context())
    silent.close()
    await until(lambda: cloud.plane.num_turned_away == 1)
    _, plain = await asyncio.open_connection("127.0.0.1", cloud.port)
    plain.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: cloud.plane.num_turned_away == 2)
    plain.close()
