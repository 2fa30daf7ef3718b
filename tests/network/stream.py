"""One TCP stream, run in a host: `receive ADDRESS` prints bytes and seconds, `send ADDRESS SECONDS` sends."""

from __future__ import annotations

import socket
import sys
import time

PORT = 5201
CHUNK = 65536


def receive(address: str) -> None:
    """Takes one connection and counts from the first byte on, leaving out the first half second, TCP's slow start."""
    with socket.create_server((address, PORT)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
    first_s: float | None = None
    begin_s = end_s = 0.0
    num_bytes = 0
    while data := connection.recv(CHUNK):
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        if now_s < first_s + 0.5:
            begin_s = now_s
            continue
        num_bytes += len(data)
        end_s = now_s
    print(num_bytes, end_s - begin_s, flush=True)


def send(address: str, seconds: float) -> None:
    """Sends as fast as it goes."""
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * CHUNK)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            connection.sendall(bytes(CHUNK))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], float(sys.argv[3]))
