"""The processes that follow grammars for this one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def followers(server: int | None = None) -> list[int]:
    """Their numbers. server: the number of the fork server whose they are; None: of any."""
    if server is not None:
        return children(server)
    return [pid for each in children(os.getpid()) if is_server(each) for pid in children(each)]


def children(pid: int) -> list[int]:
    """Processes that a process has started, in whichever thread."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text("utf-8").split())
    return found


def is_server(pid: int) -> bool:
    """Whether a process is a fork server."""
    with suppress(OSError):
        return b"tandem.plugins.grammars" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
