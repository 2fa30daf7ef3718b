"""Connections of strangers at a cloud's port, a thousand and more, while a device of its own goes on asking."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import os
import secrets
import socket
import ssl
import statistics
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tandem.errors import ProtocolError
from tandem.joining.handshakes import CLOUD_QUEUE, DeviceHandshake, hello_of, new_instance
from tandem.joining.join_link import JoinLink, client_context, load_identity
from tandem.transport.port import Endpoint, join_frames
from tandem.transport.sockets import MAX_REFUSALS, SocketPlane
from tandem_lab.reliability.bench import Bench

HELD_S = 2.0
"""How long a silent connection is held."""
PER_S = 50
"""Connections that begin per second: the strangers share this machine's cores with those they disturb."""
LIMIT_S = 10.0


class Strangers:
    """Every way of not being welcome; each takes a port and leaves no proof."""

    def __init__(self, link: JoinLink, revoked: JoinLink, random: Random) -> None:
        self._link = link
        self._revoked = revoked
        self._random = random
        self._recorded = b""

    @property
    def ways(self) -> dict[str, Callable[[int], None]]:
        """By name."""
        return {
            "silent": self.silent,
            "half open": self.half_open,
            "garbage": self.garbage,
            "slow hello": self.slow_hello,
            "garbage in TLS": self.garbage_in_tls,
            "huge frame": lambda port: self._say(port, b"\xff\xff\xff\xff\x0f"),
            "no JSON": lambda port: self._say(port, join_frames([b"\x00" * 64])),
            "wrong token": lambda port: self._say(
                port, join_frames([hello_of(replace(self._link, secret=secrets.token_bytes(16)))])
            ),
            "revoked token": lambda port: self._say(port, join_frames([hello_of(self._revoked)])),
            "older version": lambda port: self._say(
                port, join_frames([hello_of(self._link).replace(b'"protocol":', b'"protocol":1')])
            ),
            "replayed handshake": self.replay,
        }

    def silent(self, port: int) -> None:
        """Not a byte."""
        with _connect(port) as connection:
            connection.settimeout(HELD_S)
            with contextlib.suppress(OSError):
                connection.recv(1)

    def half_open(self, port: int) -> None:
        """The beginning of TLS, then a reset."""
        with _connect(port) as connection:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def garbage(self, port: int) -> None:
        """Random bytes where TLS should be."""
        with _connect(port) as connection, contextlib.suppress(OSError):
            connection.sendall(self._random.randbytes(self._random.randrange(1, 4096)))
            _drain(connection)

    def slow_hello(self, port: int) -> None:
        """A valid hello, a byte at a time, that never ends."""
        with _tls(port) as connection, contextlib.suppress(OSError):
            for byte in join_frames([hello_of(self._link)])[:20]:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)

    def garbage_in_tls(self, port: int) -> None:
        """Random bytes where the hello should be."""
        self._say(port, self._random.randbytes(self._random.randrange(1, 2048)))

    def replay(self, port: int) -> None:
        """What a welcome device has sent once, byte for byte, on another connection."""
        with _connect(port) as connection, contextlib.suppress(OSError):
            connection.sendall(self._recorded)
            _drain(connection)

    def record(self, port: int) -> None:
        """Join with a valid token, and keep the bytes that went out."""
        incoming, outgoing, sent = ssl.MemoryBIO(), ssl.MemoryBIO(), bytearray()
        tls = client_context().wrap_bio(incoming, outgoing)
        with _connect(port) as connection:

            def flush() -> None:
                data = outgoing.read()
                sent.extend(data)
                connection.sendall(data)

            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    flush()
                    incoming.write(connection.recv(1 << 16))
            tls.write(join_frames([hello_of(self._link)]))
            flush()
            incoming.write(connection.recv(1 << 16))
        self._recorded = bytes(sent)

    def _say(self, port: int, data: bytes) -> None:
        with _tls(port) as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            _drain(connection)


def crowd(bench: Bench, num_connections: int, random: Random, strangers: Strangers) -> dict[str, Any]:
    """Let strangers come while the device asks; whether all were counted, and what became of the device's pace."""
    port: int = bench.cloud.hello["port"]
    strangers.record(port)
    quiet = _pace(bench, lambda count: count < 10)
    before = bench.cloud.measure()
    ways, threads = itertools.cycle(strangers.ways.items()), []
    counts: dict[str, int] = dict.fromkeys(strangers.ways, 0)

    def come() -> None:
        for _ in range(num_connections):
            name, way = next(ways)
            counts[name] += 1
            threads.append(threading.Thread(target=_quietly, args=(way, port)))
            threads[-1].start()
            time.sleep(1 / PER_S)

    coming = threading.Thread(target=come)
    coming.start()
    peak = {"rss_bytes": 0, "files": 0}

    def is_on(_: int) -> bool:
        now = bench.cloud.measure()
        peak.update({key: max(value, now[key]) for key, value in peak.items()})
        return coming.is_alive()

    disturbed = _pace(bench, is_on)
    coming.join()
    for thread in threads:
        thread.join()
    end_s = time.monotonic() + LIMIT_S
    while bench.cloud.measure()["turned_away"] - before["turned_away"] < num_connections:
        if time.monotonic() > end_s:
            break
        time.sleep(0.1)
    after = bench.cloud.measure()
    return {
        "counts": counts,
        "turned_away": after["turned_away"] - before["turned_away"],
        "rss_mb": [before["rss_bytes"] / 1e6, peak["rss_bytes"] / 1e6, after["rss_bytes"] / 1e6],
        "files": [before["files"], peak["files"], after["files"]],
        "token_ms_quiet": quiet["token_ms"],
        "token_ms_disturbed": disturbed["token_ms"],
        "answers": disturbed["answers"],
        "wrong": quiet["wrong"] + disturbed["wrong"],
        "load": os.getloadavg()[0],
    }


def _pace(bench: Bench, goes_on: Callable[[int], bool]) -> dict[str, Any]:
    """Ask while `goes_on`: the median time per token over answers, and whether they are right."""
    paces: list[float] = []
    num_wrong = 0
    while goes_on(len(paces)) or not paces:
        question = bench.questions[len(paces) % len(bench.questions)]
        watched = bench.ask(question, 0, policy="wait")
        num_wrong += not watched.matches(bench.whole_answer(question, 0))
        if len(watched.came_s) > 1:
            paces.append(1e3 * (watched.came_s[-1] - watched.came_s[0]) / (len(watched.came_s) - 1))
    return {"token_ms": statistics.median(paces), "answers": len(paces), "wrong": num_wrong}


def false_clouds(link: JoinLink, num_connections: int, folder: Path) -> dict[str, Any]:
    """A device that dials clouds with a foreign key, or with its own cloud's expired certificate; nothing is told them.

    link: of a cloud whose keys are in `folder`.
    """
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=800)
    expired = load_identity(
        folder / "expired", long_ago
    )  # its certificate; its key makes the link's fingerprint
    foreign = load_identity(folder / "foreign")
    known = {
        "foreign": (foreign.server_context(), link),
        "expired": (expired.server_context(), replace(link, fingerprint=expired.fingerprint)),
    }
    results: dict[str, Any] = {}
    for name, (context, shown) in known.items():
        results[name] = asyncio.run(_refuse_cloud(context, shown, num_connections // 2))
    return results


class DeafQueue:
    """A device's draft queue that ignores what it receives."""

    name = "device/draft_queue"

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        """Ignored."""

    def on_connected(self, name: str) -> None:
        """Ignored."""

    def on_lost(self, name: str) -> None:
        """Ignored."""


async def _refuse_cloud(context: ssl.SSLContext, link: JoinLink, num_connections: int) -> dict[str, Any]:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            heard.extend(await reader.read(1 << 12))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    own = replace(link, host="127.0.0.1", port=port)
    planes = [
        SocketPlane(
            DeafQueue(),
            handshake=lambda dials, crosses: DeviceHandshake(own, new_instance(), lambda about: None),
            client_tls=client_context(),
        )
        for _ in range(-(-num_connections // MAX_REFUSALS))
    ]
    where = Endpoint(CLOUD_QUEUE, None, "127.0.0.1", port)
    ends = await asyncio.gather(*(plane.connect(where) for plane in planes), return_exceptions=True)
    sentences = {str(end).replace(str(port), "PORT") for end in ends}
    for plane in planes:
        await plane.close()
    server.close()
    is_refused = all(isinstance(end, ProtocolError) for end in ends)
    return {
        "refused": MAX_REFUSALS * len(planes) if is_refused else 0,
        "bytes_told": len(heard),
        "sentences": sorted(sentences),
    }


def _quietly(way: Callable[[int], None], port: int) -> None:
    with contextlib.suppress(OSError):
        way(port)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def _tls(port: int) -> ssl.SSLSocket:
    return client_context().wrap_socket(_connect(port))


def _drain(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass
