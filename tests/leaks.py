"""Where a text of one side's documents can be seen at another: in processes, in files, behind open ports.

Processes are searched in all of their memory that holds data, in their command lines and in their environments. Needs
root for those of others.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

SCAN = str(Path(__file__).with_name("scan_ports.py"))
CHUNK_BYTES = 1 << 24


def processes_holding(pids: Iterable[int], texts: Sequence[str]) -> list[str]:
    """Each process and place with one of the texts, as "raylet 1234 memory: Vornwick windmill"."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
            name = Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
            for place, data in _data_of(pid):
                found += [f"{name} {pid} {place}: {text}" for text in texts if text.encode() in data]
    return sorted(set(found))


def files_holding(folders: Iterable[Path], texts: Sequence[str]) -> list[str]:
    """Each file below the folders with one of the texts in it."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [f"{path}: {text}" for path in files for text in texts if text.encode() in path.read_bytes()]


def open_ports(prefix: Sequence[str], address: str) -> list[int]:
    """TCP ports of an address that accept a connection, of all 65,535. prefix: stands before the scan's command."""
    command = [*prefix, sys.executable, SCAN, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [int(port) for port in done.stdout.split()]


def _data_of(pid: int) -> Iterator[tuple[str, bytes]]:
    """Place and content of all that a process holds; of its memory piece by piece, which overlap."""
    folder = Path(f"/proc/{pid}")
    yield "command line", (folder / "cmdline").read_bytes().replace(b"\0", b" ")
    yield "environment", (folder / "environ").read_bytes()
    with (folder / "mem").open("rb", buffering=0) as memory:
        for start, end in _mappings(folder):
            for at in range(start, end, CHUNK_BYTES):
                with contextlib.suppress(OSError, ValueError):  # unmapped meanwhile, or a device's
                    memory.seek(at)
                    yield "memory", memory.read(min(CHUNK_BYTES + 1024, end - at))


def _mappings(folder: Path) -> Iterator[tuple[int, int]]:
    """What can be read and is not just the code of a library."""
    for line in (folder / "maps").read_text("utf-8").splitlines():
        span, mode, _, _, _, *path = line.split(maxsplit=5)
        if mode[0] == "r" and (mode[1] == "w" or not path or path[0].startswith("/dev/shm")):
            start, end = (int(word, 16) for word in span.split("-"))
            yield start, end
