"""Prints the TCP ports of an address that accept a connection: `python scan_ports.py ADDRESS`. Runs in any host."""

from __future__ import annotations

import errno
import select
import socket
import sys

AT_ONCE = 400
LIMIT_S = 10.0
"""Without any answer: what is still asked then does not accept."""


def main(address: str) -> None:
    ports, found = iter(range(1, 1 << 16)), []
    asked: dict[int, tuple[socket.socket, int]] = {}
    answers = select.epoll()
    while True:
        while len(asked) < AT_ONCE and (port := next(ports, None)) is not None:
            client = socket.socket()
            client.setblocking(False)
            error = client.connect_ex((address, port))
            if error == errno.EINPROGRESS:
                asked[client.fileno()] = client, port
                answers.register(client, select.EPOLLOUT)
            else:
                found += [port] if error == 0 else []
                client.close()
        if not asked:
            break
        for number in [number for number, _ in answers.poll(LIMIT_S)] or list(asked):
            client, port = asked.pop(number)
            is_open = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            found += [port] if is_open and _is_connected(client) else []
            client.close()
    print(*sorted(found))


def _is_connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
