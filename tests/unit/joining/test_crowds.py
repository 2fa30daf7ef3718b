"""Many connections that never show a token: bounded, counted, and those who are welcome still come in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from tandem.joining.handshakes import hello_of
from tandem.joining.join_link import client_context
from tandem.transport import sockets
from tandem.transport.port import join_frames
from tests.unit.joining.conftest import Cloud
from tests.unit.transport.conftest import until


@contextlib.contextmanager
def crowd(port: int, num_connections: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connections that say nothing, not even TLS."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(dial(port, source)) for _ in range(num_connections)]


def dial(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of this machine."""
    return socket.create_connection(("127.0.0.1", port), 60, (source, 0))


async def talk(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin TLS there."""
    return await asyncio.open_connection(sock=connection, ssl=client_context(), server_hostname="")


@pytest.mark.parametrize("is_within_tls", [False, True], ids=["before TLS", "within TLS"])
async def test_a_crowd_pushes_out_itself_and_nobody_else(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, is_within_tls: bool
) -> None:
    """A device that is slower than they are, at another address, is welcome when it says who it is."""
    monkeypatch.setattr(sockets, "MAX_UNPROVEN", 8)
    monkeypatch.setattr(sockets, "DIAL_LIMIT_S", 60.0)
    await cloud.start()
    link = cloud.link_for("phone")
    slow = dial(cloud.port)
    with contextlib.ExitStack() as stack:
        if is_within_tls:
            reader, writer = await talk(slow)
            strangers = [await talk(dial(cloud.port, "127.0.0.2")) for _ in range(40)]
            stack.callback(lambda: [stranger.close() for _, stranger in strangers])
            await until(lambda: cloud.plane.num_turned_away == 33)
        else:
            await asyncio.to_thread(lambda: stack.enter_context(crowd(cloud.port, 100, "127.0.0.2")))
            await until(lambda: cloud.plane.num_turned_away == 93)
            assert cloud.plane.num_connections <= 8
            reader, writer = await talk(slow)
        writer.write(join_frames([hello_of(link)]))
        welcome = await asyncio.wait_for(reader.read(1000), 60)
        assert b"about" in welcome
        writer.close()


CLIENT_HELLO = bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])
"""The beginning of one."""


@pytest.mark.parametrize("pause_s", [None, 0.1], ids=["silent", "in drops"])
@pytest.mark.parametrize("is_within_tls", [False, True], ids=["before TLS", "within TLS"])
async def test_tls_and_hello_have_a_limit_of_time(
    cloud: Cloud, is_within_tls: bool, pause_s: float | None
) -> None:
    await cloud.start()
    if is_within_tls:
        whole = join_frames([hello_of(cloud.link_for("phone"))])
        reader, writer = await talk(dial(cloud.port))
    else:
        whole = CLIENT_HELLO + bytes(500)
        reader, writer = await asyncio.open_connection("127.0.0.1", cloud.port)
    writer.write(whole[: len(CLIENT_HELLO)])
    assert await asyncio.wait_for(end_of(reader, writer, whole[len(CLIENT_HELLO) :], pause_s), 60)
    await until(lambda: cloud.plane.num_turned_away == 1)


async def end_of(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, more: bytes, pause_s: float | None
) -> bool:
    """Whether the cloud ends a connection on which a byte is sent now and then, or none, before all of them are."""
    ending = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        for byte in more if pause_s is not None else ():
            await asyncio.sleep(pause_s)
            if ending.done():
                break
            writer.write(bytes([byte]))
        await ending
    writer.close()
    return ending.done()
