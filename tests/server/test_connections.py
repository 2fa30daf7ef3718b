"""Clients that hold connections and never finish what they began, through sockets; others are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tandem import Tandem
from tandem.plugins.server.http import ServerLimits
from tests.server.running import LONG, LONG_SEEDS, QUESTION, Served, serving, wait_until

QUICK_S = 0.25
"""The limit of time of these servers."""
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
OWN, OTHER = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def quick(tandem: Tandem) -> Iterator[Served]:
    """A server that waits for no one."""
    limits = ServerLimits(request_timeout_s=QUICK_S, send_timeout_s=QUICK_S, drain_timeout_s=5.0)
    with serving(tandem, limits=limits) as running:
        yield running


@pytest.fixture(scope="module")
def small(tandem: Tandem) -> Iterator[Served]:
    """A server that takes 8 connections of one address, 20 in all."""
    limits = ServerLimits(max_connections=20, max_connections_per_address=8, drain_timeout_s=5.0)
    with serving(tandem, limits=limits) as running:
        yield running


Dial = Callable[..., socket.socket]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """`connect`, for as long as the test lasts."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(connect(*arguments))


def connect(served: Served, sent: bytes = b"", source: str = OWN) -> socket.socket:
    """A connection from an address of this machine, on which some bytes are sent."""
    connection = socket.create_connection((OWN, int(served.url.rpartition(":")[2])), 60, (source, 0))
    if sent:
        connection.sendall(sent)
    return connection


def ask(served: Served, source: str = OWN, path: str = "/health") -> httpx.Response:
    """One request from an address of this machine, on a connection of its own."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=60) as client:
        return client.get(served.url + path)


def read_all(connection: socket.socket) -> bytes:
    """What the server sent until it closed the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def trickle(connection: socket.socket, text: bytes, pause_s: float = QUICK_S / 8) -> None:
    """Send a byte now and then, again and again, until the server closes the connection."""
    deadline_s = time.monotonic() + 60
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline_s:
            for byte in text:
                connection.sendall(bytes([byte]))
                time.sleep(pause_s)
    assert time.monotonic() < deadline_s, "it was never closed"


def count(served: Served, name: str) -> float:
    """A metric of the server; asked again where the request was too slow itself."""
    pattern = re.compile(rf"^{re.escape(name)} ([0-9.e+]+)$", re.MULTILINE)
    found = None
    while found is None:
        with contextlib.suppress(httpx.HTTPError):
            found = pattern.search(ask(served, OTHER, "/metrics").text)
    return float(found[1])


def dropped(served: Served, reason: str) -> float:
    return count(served, f'tandem_http_connections_dropped_total{{reason="{reason}"}}')


# ---- limits of time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "more", "status"),
    [
        (b"", b"", b""),
        (b"GET / HTTP/1.1\r\nHos", b"", b"408"),
        (b"G", b"ET / HTTP/1.1\r\nX: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", b"408"),
    ],
    ids=["silent", "half a head", "a head in drops"],
)
def test_a_head_has_a_limit_of_time(
    dial: Dial, quick: Served, sent: bytes, more: bytes, status: bytes
) -> None:
    before = dropped(quick, "slow_head")
    connection = dial(quick, sent)
    if more:
        trickle(connection, more)
    received = read_all(connection)
    assert received == b"" or received.startswith(b"HTTP/1.1 408 "), received
    if not more:  # else what was sent too late may have reset the connection, with the response
        assert received[9:12] == status
    assert dropped(quick, "slow_head") > before


@pytest.mark.parametrize("more", [b"", b"G"], ids=["silent", "a head in drops"])
def test_so_has_the_head_of_a_further_request(dial: Dial, quick: Served, more: bytes) -> None:
    connection = dial(quick, HEALTH)
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    if more:
        trickle(connection, more)
    assert b" 200 " not in read_all(connection)


@pytest.mark.parametrize("head", [b"Content-Length: 100000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
@pytest.mark.parametrize("more", [b"", b"1\r\nx\r\n"], ids=["silent", "in drops"])
def test_so_has_a_body(dial: Dial, quick: Served, head: bytes, more: bytes) -> None:
    before = dropped(quick, "slow_body")
    connection = dial(quick, CHAT + head)
    if more:
        trickle(connection, more)
    received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 408 ") or (more and not received), received
    if received:
        error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
        assert error["message"] == "The body of the request came too slowly; send it again, faster."
    assert dropped(quick, "slow_body") > before


def test_who_reads_nothing_is_cut_off(dial: Dial, quick: Served) -> None:
    before = dropped(quick, "slow_reading")
    connection = dial(quick)
    request = b"GET /main.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    with contextlib.suppress(OSError):  # it is closed
        for _ in range(10_000):
            connection.sendall(request)
    wait_until(lambda: dropped(quick, "slow_reading") > before, 60)


def test_what_is_slow_but_steady_is_served(dial: Dial, quick: Served) -> None:
    """Three times the limit for a body, with pauses below it."""
    body = json.dumps({"model": "tandem", "messages": [], "user": "x" * 6000}).encode()
    connection = dial(quick, CHAT + b"Content-Length: %d\r\n\r\n" % len(body) + body[:500])
    for start in range(500, len(body), 500):
        time.sleep(QUICK_S / 4)
        connection.sendall(body[start : start + 500])
    received = connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 400 "), "there is no message in it"


def test_garbage_is_counted_and_not_logged(
    dial: Dial, quick: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the answer to what came before it has ended."""
    before = dropped(quick, "malformed")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert read_all(dial(quick, b"\0\1\2\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
            connection = dial(
                quick, b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 405 ")
            connection.sendall(b"no number\r\n")
            read_all(connection)
    assert dropped(quick, "malformed") >= before + 6
    assert [record.name for record in caplog.records if record.levelno > logging.INFO] == []


# ---- limits of number ---------------------------------------------------------------------------------------


def test_one_address_leaves_places_for_others(
    dial: Dial, small: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """And for itself: the oldest connection whose request has not come makes room for the next."""
    begun = (b"", b"GET / HTTP/1.1\r\nHos", HEALTH, CHAT + b"Content-Length: 9\r\n\r\n")
    before = dropped(small, "full_address")
    with caplog.at_level(logging.INFO, "tandem.plugins.server"):
        for number in range(300):
            dial(small, begun[number % 4])
            if number % 50 == 0:
                assert ask(small, OTHER).status_code == 200
        assert ask(small).status_code == 200
        assert count(small, "tandem_http_connections_open") <= 9
    assert dropped(small, "full_address") > before + 200
    assert caplog.text.count("connection dropped") < 20


def test_it_stops_while_they_come(tandem: Tandem) -> None:
    """Also those end that it has accepted, but not looked at."""
    has_ended = threading.Event()

    def flood(served: Served) -> None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                while not has_ended.is_set():
                    stack.enter_context(connect(served, b"GET /"))
            has_ended.wait(60)

    # It ends within 20 s, or raises.
    with serving(tandem, limits=ServerLimits(drain_timeout_s=120.0)) as running:
        threads = [threading.Thread(target=flood, args=(running,), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: dropped(running, "full_address") > 300)
    has_ended.set()
    for thread in threads:
        thread.join(60)


def test_requests_keep_their_places(dial: Dial, small: Served) -> None:
    """Nothing that is answered makes room; the next connection of that address is told why it has none."""
    chat = {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}], "stream": True, **LONG}
    body = json.dumps(chat | {"seed": LONG_SEEDS[0]}).encode()
    streams = [dial(small, CHAT + b"Content-Length: %d\r\n\r\n" % len(body) + body) for _ in range(8)]
    for stream in streams:
        assert stream.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    refused = read_all(dial(small))
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in refused
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"] == {
        "message": "This server has 8 connections from 127.0.0.1, as many as one address may have; close some.",
        "type": "server_error",
        "param": None,
        "code": "too_many_connections",
    }
    assert ask(small, OTHER).status_code == 200
    for stream in streams:
        assert stream.recv(1 << 20), "more of the answer comes"
        stream.close()
    small.wait_until_idle()
