"""The data plane on real sockets, Unix-domain and TCP on 127.0.0.1, and who exceeds its rate: it waits."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import ProtocolError
from tandem.joining.join_link import Identity, load_identity
from tandem.transport import sockets
from tandem.transport.port import MAX_HANDSHAKE_BYTES, Endpoint, FrameSplitter, Greeting, join_frames, proof
from tandem.transport.sockets import TokenBucket, tls_contexts
from tests.unit.transport.conftest import SECRET, Recorder, until

QUEUE = "cloud/draft_queue"
PEER = "device/draft_queue"


async def pair(directory: str, *, tcp: bool = True, **options: Any) -> tuple[Recorder, Recorder, Endpoint]:
    """A listening cloud queue and a device queue connected to it."""
    cloud = Recorder(QUEUE, directory, host="127.0.0.1" if tcp else None, **options)
    device = Recorder(PEER, directory, **options)
    endpoint = await cloud.plane.start()
    await device.plane.start()
    if not tcp:
        endpoint = replace(endpoint, host=None, port=None)
    await asyncio.wait_for(device.plane.connect(endpoint), 60)
    await until(lambda: cloud.connected)
    return cloud, device, endpoint


def transport_of(recorder: Recorder, name: str) -> asyncio.Transport:
    connection = recorder.plane.connection_to(name)
    assert connection is not None
    assert connection.transport is not None
    return connection.transport


async def close(*recorders: Recorder) -> None:
    for recorder in recorders:
        await recorder.plane.close()


# ---- frames ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True])
async def test_frames_go_both_ways_in_order(directory: str, tcp: bool) -> None:
    cloud, device, _ = await pair(directory, tcp=tcp)
    frames = [bytes([n % 256]) * n for n in range(0, 3000, 7)]
    for frame in frames:
        device.send(QUEUE, frame)
        cloud.send(PEER, frame)
    await until(lambda: len(cloud.received) == len(device.received) == len(frames))
    assert cloud.received == device.received == frames
    assert {source for source, _ in cloud.frames} == {PEER}
    assert device.connected == [QUEUE]
    counters = device.plane.counters[QUEUE]
    assert (counters.sent_frames, counters.connections) == (len(frames), 1)
    assert counters.sent_bytes == len(join_frames(frames))


async def test_a_full_buffer_drops_rather_than_blocks(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dropped the protocol resends; memory stays bounded, and another connection is tried."""
    cloud, device, _ = await pair(directory)
    renewed: list[str] = []
    monkeypatch.setattr(device.plane, "renew", renewed.append)
    transport_of(cloud, PEER).pause_reading()
    for _ in range(200):
        device.send(QUEUE, bytes(100_000))
        await asyncio.sleep(0)
    counters = device.plane.counters[QUEUE]
    assert counters.dropped_frames > 50
    assert set(renewed) == {QUEUE}
    assert transport_of(device, QUEUE).get_write_buffer_size() <= sockets.MAX_BUFFERED_BYTES + 100_010


# ---- strangers -------------------------------------------------------------------------------------------------


async def test_another_secret_is_refused_by_both_ends_and_said_once(
    directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A few attempts, for a site that is being replaced; then one sentence for whoever connects, and in the log."""
    cloud = Recorder(QUEUE, directory, host="127.0.0.1")
    stranger = Recorder(PEER, directory, secret=b"another")
    endpoint = await cloud.plane.start()
    sentence = "'cloud/draft_queue' does not know this cluster's secret; connect only actors of one cluster"
    for _ in range(2):
        with pytest.raises(ProtocolError, match=sentence):
            await asyncio.wait_for(stranger.plane.connect(endpoint), 60)
    assert cloud.connected == stranger.connected == []
    assert len([line for line in caplog.messages if sentence in line]) == 1


async def dial_raw(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(endpoint.host, endpoint.port)


async def frame_from(reader: asyncio.StreamReader, splitter: FrameSplitter, waiting: list[bytes]) -> bytes:
    while not waiting:
        data = await asyncio.wait_for(reader.read(4096), 60)
        if not data:
            raise ConnectionError
        waiting += splitter.feed(data)
    return waiting.pop(0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        b"\0" * 64,
        join_frames([b"tandem/1"]),
        join_frames([Greeting(PEER, bytes(16), True).encode(), bytes(32)]),
        join_frames([Greeting(PEER, bytes(16), True).encode(), b""]),
        join_frames([b"\x07" * 40] * 3),
    ],
)
async def test_garbage_is_refused_and_the_server_survives(directory: str, garbage: bytes) -> None:
    cloud, device, endpoint = await pair(directory)
    reader, writer = await dial_raw(endpoint)
    writer.write(garbage)
    writer.write(join_frames([b"a frame"]))
    await asyncio.wait_for(reader_end(reader), 60)
    writer.close()
    device.send(QUEUE, b"still here")
    await until(lambda: cloud.received == [b"still here"])
    assert cloud.connected == [PEER]
    assert cloud.plane.num_connections == 1


async def reader_end(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(4096):
            pass
    except ConnectionError:
        pass


async def test_a_name_alone_opens_nothing(directory: str) -> None:
    """Without the secret: the right name and a proof under a guessed one; the real connection stays in use."""
    cloud, device, endpoint = await pair(directory)
    reader, writer = await dial_raw(endpoint)
    own = Greeting(PEER, b"n" * 16, dials=True)
    writer.write(join_frames([own.encode()]))
    splitter, waiting = FrameSplitter(), list[bytes]()
    greeting, keyed = [await frame_from(reader, splitter, waiting) for _ in range(2)]
    other = Greeting.decode(greeting)
    assert other.name == QUEUE
    assert SECRET not in greeting + keyed
    assert len(keyed) == 32, "a keyed digest"
    writer.write(join_frames([proof(b"guessed", own, other), b"injected"]))
    await asyncio.wait_for(reader_end(reader), 60)
    writer.close()
    assert cloud.received == []
    assert cloud.connected == [PEER]
    cloud.send(PEER, b"to the real one")
    await until(lambda: device.received == [b"to the real one"])


async def test_a_stranger_cannot_announce_a_long_frame(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 such connections would hold 240 MB."""
    monkeypatch.setattr(sockets, "DIAL_LIMIT_S", 100.0)
    cloud = Recorder(QUEUE, directory, host="127.0.0.1")
    reader, writer = await dial_raw(await cloud.plane.start())
    writer.write(join_frames([bytes(MAX_HANDSHAKE_BYTES + 1)])[:10])
    await asyncio.wait_for(reader_end(reader), 60)
    writer.close()


async def prove_raw(endpoint: Endpoint, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a right proof and nothing behind it, as that of a host that vanished."""
    reader, writer = await dial_raw(endpoint)
    own = Greeting(name, os.urandom(16), dials=True)
    writer.write(join_frames([own.encode()]))
    other = Greeting.decode(await frame_from(reader, FrameSplitter(), []))
    writer.write(join_frames([proof(SECRET, own, other)]))
    return reader, writer


async def test_a_peer_that_reconnects_leaves_no_connection_behind(directory: str) -> None:
    """A device that vanishes says no goodbye: its next connection replaces the last."""
    cloud = Recorder(QUEUE, directory, host="127.0.0.1")
    endpoint = await cloud.plane.start()
    ends = []
    for number in range(20):
        ends.append(await prove_raw(endpoint, PEER))
        await until(lambda number=number: len(cloud.connected) == number + 1)  # type: ignore[misc]
    await until(lambda: cloud.plane.num_connections == 1)
    assert cloud.lost == []
    cloud.send(PEER, b"to the last")
    await until(lambda: cloud.plane.counters[PEER].sent_frames == 1)
    for _, writer in ends:
        writer.close()
    await until(lambda: cloud.lost == [PEER])


async def test_a_host_that_vanished_is_noticed(directory: str) -> None:
    """TCP asks after 10 s without a packet, and gives up after three questions 5 s apart."""
    cloud, device, _ = await pair(directory)
    for recorder, name in ((cloud, PEER), (device, QUEUE)):
        handle = transport_of(recorder, name).get_extra_info("socket")
        assert handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
        assert [handle.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [10, 5, 3]
        given_up_ms = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert given_up_ms == (25_000 if recorder is cloud else 0)


async def test_the_peer_cannot_pass_for_an_actor_of_the_site(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the secret, but what comes from outside is of the other party."""
    monkeypatch.setattr(sockets, "DIAL_LIMIT_S", 100.0)
    cloud = Recorder(QUEUE, directory, host="127.0.0.1")
    reader, writer = await prove_raw(await cloud.plane.start(), "cloud/decoder")
    await asyncio.wait_for(reader_end(reader), 60)
    assert cloud.connected == []
    writer.close()


# ---- connections come and go -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_restarted_server_is_dialled_again(directory: str, tcp: bool) -> None:
    cloud, device, endpoint = await pair(directory, tcp=tcp)
    await cloud.plane.close()
    await until(lambda: device.lost == [QUEUE])
    device.send(QUEUE, b"lost")
    again = Recorder(QUEUE, directory, host="127.0.0.1" if tcp else None, port=endpoint.port or 0)
    await again.plane.start()
    await until(lambda: device.connected == [QUEUE, QUEUE])
    device.send(QUEUE, b"found")
    await until(lambda: again.received == [b"found"])
    assert device.plane.counters[QUEUE].dropped_frames == 1
    assert cloud.lost == []  # the own close is no loss


class _Proxy:
    """Between two actors: passes bytes on until told to hang, then holds them and both connections."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.is_hanging = False
        self.num_connections = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        self.writers += [writer, far_writer]
        number = self.num_connections
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self.tasks.add(asyncio.create_task(self._pump(number, source, target)))

    async def _pump(self, number: int, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not (self.is_hanging and number == 1):
                    target.write(data)
        except ConnectionError:
            pass

    async def close(self) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for writer in self.writers:
            writer.close()
        await asyncio.sleep(0.01)


async def test_renew_opens_a_fresh_connection_while_the_old_one_hangs(directory: str) -> None:
    """After a cut TCP may back off for many seconds: nothing is waited for, and the old connection is given up."""
    cloud = Recorder(QUEUE, directory, host="127.0.0.1")
    device = Recorder(PEER, directory)
    real = await cloud.plane.start()
    assert real.host is not None
    assert real.port is not None
    proxy = _Proxy(real.host, real.port)
    await device.plane.connect(replace(real, port=await proxy.start()))
    await until(lambda: cloud.connected)
    proxy.is_hanging = True
    device.send(QUEUE, b"hangs")
    await asyncio.sleep(0.05)
    assert cloud.received == []
    device.plane.renew(QUEUE)
    device.plane.renew(QUEUE)  # once is enough
    await until(lambda: len(cloud.connected) == 2)
    await until(lambda: device.plane.num_connections == 1)
    device.send(QUEUE, b"passes")
    cloud.send(PEER, b"back")
    await until(lambda: cloud.received == [b"passes"] and device.received == [b"back"])
    assert proxy.num_connections == 2
    assert device.lost == []
    await close(cloud, device)
    await proxy.close()


# ---- close -----------------------------------------------------------------------------------------------------


async def test_close_leaves_no_task_no_socket_file_and_no_connection(directory: str) -> None:
    cloud, device, endpoint = await pair(directory)
    mode = os.stat(os.path.join(directory, "cloud-draft_queue")).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    reader, writer = await dial_raw(endpoint)  # a stranger who has proven nothing yet
    device.send(QUEUE, b"on its way")
    await close(cloud, device)
    await asyncio.wait_for(reader_end(reader), 60)
    writer.close()
    assert not os.listdir(directory)
    assert not cloud.plane.num_connections
    assert not device.plane.num_connections


# ---- TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
def identities(tmp_path: Path) -> list[Identity]:
    """Two keys, each with a certificate that is its own authority."""
    return [load_identity(tmp_path / name) for name in ("own", "other")]


def contexts_of(identity: Identity, authority: Identity) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of a client with this certificate, that trust an authority."""
    files = identity.certificate_file, identity.key_file, authority.certificate_file
    return tls_contexts(*map(str, files))


async def test_tls_between_nodes(directory: str, identities: list[Identity]) -> None:
    own, _ = identities
    server, client = contexts_of(own, own)
    cloud, device, endpoint = await pair(directory, server_tls=server, client_tls=client)
    device.send(QUEUE, b"there")
    cloud.send(PEER, b"back")
    await until(lambda: cloud.received == [b"there"] and device.received == [b"back"])
    assert transport_of(device, QUEUE).get_extra_info("cipher") is not None

    reader, writer = await dial_raw(endpoint)  # plain bytes meet a TLS server
    writer.write(join_frames([Greeting(PEER, bytes(16), True).encode()]))
    await asyncio.wait_for(reader_end(reader), 60)
    writer.close()
    await close(cloud, device)
    await asyncio.sleep(0.05)


async def test_a_certificate_of_another_authority_is_refused(
    directory: str, identities: list[Identity]
) -> None:
    own, other = identities
    server, _ = contexts_of(own, own)
    _, client = contexts_of(other, own)
    assert client.verify_mode is ssl.CERT_REQUIRED
    cloud = Recorder(QUEUE, directory, host="127.0.0.1", server_tls=server)
    device = Recorder(PEER, directory, client_tls=client)
    endpoint = await cloud.plane.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(device.plane.connect(endpoint), 0.6)
    assert cloud.connected == []
    await close(cloud, device)
    await asyncio.sleep(0.05)


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
