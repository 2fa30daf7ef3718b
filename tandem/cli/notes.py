"""What `tandem up` remembers of the nodes that it started on this machine, one small private file per role.

A note holds the node, its cluster's token and the start time of its process, so that `tandem down` never stops
another process that got the same id. Knows nothing of how nodes are started or stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import ClusterError
from tandem.paths import state_folder
from tandem.topology import PARTIES, Party


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One running node of this machine."""

    role: Party
    node: dict[str, Any]  # fields of the node as its starter gave them; holds at least address and pid
    token: str | None  # of its cluster; None where the cluster was not given one by us

    @property
    def address(self) -> str:
        """Of the cluster."""
        return str(self.node["address"])

    @property
    def pid(self) -> int:
        """Of the node's first process."""
        return int(self.node["pid"])


def running() -> list[Note]:
    """The nodes started here that still run, device first."""
    return [note for role in PARTIES if (note := _read(role)) is not None]


def write(note: Note) -> None:
    """Keeps a note, readable by this user alone."""
    text = json.dumps(
        {"node": note.node, "token": note.token, "started_ticks": _started_ticks(note.pid)}, indent=2
    )
    file = _file(note.role)
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text + "\n")


def forget(role: Party) -> None:
    """Drops the note of a role, if there is one."""
    _file(role).unlink(missing_ok=True)


@contextmanager
def locked() -> Iterator[None]:
    """Keeps two commands from starting or stopping nodes at once. Raises ClusterError if notes cannot be kept."""
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise ClusterError(
            f"The notes on running nodes cannot be kept in {folder} ({error.strerror}); check its rights or set "
            "XDG_STATE_HOME."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tandem: waiting for another `tandem up` or `tandem down`", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(role: Party) -> Note | None:
    """The note of a role; None if there is none, it is unreadable, or its process has gone."""
    try:
        content = json.loads(_file(role).read_text("utf-8"))
        note = Note(role=role, node=dict(content["node"]), token=content["token"])
        ticks = content["started_ticks"]
        return note if note.address and ticks is not None and _started_ticks(note.pid) == ticks else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(role: Party) -> Path:
    return state_folder() / f"{role}.json"


def _started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it does not run. See proc(5), stat, field 22."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
