"""Unix-domain sockets in folders whose paths are too long for their addresses."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from tandem.errors import TandemError

MAX_PATH_BYTES = 107
"""Longest path of a Unix-domain socket on Linux."""


@contextlib.contextmanager
def shorten(path: str) -> Iterator[str]:
    """An address for the socket at `path` that is short enough, valid within the context.

    TandemError where the system offers none.
    """
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{descriptor}/{name}"
        if not os.path.isdir(os.path.dirname(short)) or len(os.fsencode(short)) > MAX_PATH_BYTES:
            raise TandemError(
                f"The path of a socket has at most {MAX_PATH_BYTES} bytes (got {len(os.fsencode(path))}: {path!r}); "
                "set TMPDIR to a shorter folder."
            )
        yield short
    finally:
        os.close(descriptor)


def bind(unix_path: str) -> socket.socket:
    """A socket at a path of the Unix domain, for this user alone; a stale one is replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unix_path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        with shorten(unix_path) as path:
            listener.bind(path)
        os.chmod(unix_path, 0o600)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
