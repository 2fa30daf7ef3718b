"""`tandem up`, `tandem down` and `tandem status`: this machine's nodes of a cluster.

What `up` started is noted in a small file per role, with the process's start time, so that `down` stops just
that and never another process that got the same id. Starting and stopping itself is `tandem.actors.launch`'s.
"""

from __future__ import annotations

import fcntl
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tandem.cli.folders import state_folder
from tandem.cli.terminal import Progress, print_json, settings
from tandem.errors import ClusterError
from tandem.side import SIDES, Side


def up(args: Namespace) -> int:
    """Starts a node and its side, in the background. Raises TandemError; a half-started node is stopped."""
    role = Side(args.role)
    progress = Progress()
    config = settings(args, progress=progress)
    with _locked():
        _refuse_second(role)
        from tandem.actors import launch

        info = launch.start_node(role, join=args.join, config=config)
        _note(role, asdict(info))
        try:
            progress(f"node: {role} at {info.address}")
            launch.start_side(role, config)
        except BaseException:
            launch.stop_node(info)
            _note_file(role).unlink()
            raise
    progress(f"side: {role} is ready")
    print(f"The {role} node is up at {info.address}.")
    if args.join is None:
        print(f"Join it from the other machine: tandem up {role.other} --join {info.address}")
    print(f"Ask it: tandem ask --address {info.address} QUESTION")
    return 0


def down(_args: Namespace) -> int:
    """Stops every node that `tandem up` started here. Raises ClusterError if there is none."""
    with _locked():
        noted = _noted()
        if not noted:
            raise ClusterError(
                f"`tandem down` stops what `tandem up` started here, but {state_folder()} names nothing that runs; "
                "nothing was stopped."
            )
        from tandem.actors import launch

        for role, node in reversed(noted):  # the device's node holds the cluster together: it goes last
            launch.stop_node(launch.NodeInfo(**node))
            _note_file(role).unlink(missing_ok=True)
            print(f"The {role} node (process {node['pid']}) is down.")
    return 0


def status(args: Namespace) -> int:
    """Shows a running cluster. Raises ClusterError if there is none."""
    config = settings(args)
    address = args.address or config.cluster.address or _noted_address()
    from tandem.api import Tandem

    with Tandem.connect(address, config) as tandem:
        state = tandem.status()
    if args.json:
        print_json(state)
    else:
        print("\n".join(_lines(state)))
    return 0


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """A nested value as indented lines, one leaf each."""
    items = value.items() if isinstance(value, dict) else ((f"{i + 1}", item) for i, item in enumerate(value))
    for key, item in items:
        if isinstance(item, dict | list | tuple) and item:
            yield f"{indent}{key}"
            yield from _lines(item, indent + "  ")
        else:
            yield f"{indent}{key}: {_leaf(item)}"


def _leaf(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value in (None, "", [], {}, ()) else str(value)


def _refuse_second(role: Side) -> None:
    """A machine has at most one node of each role that `tandem up` started."""
    for other, node in _noted():
        if other is role:
            raise ClusterError(
                f"A machine runs one {role} node at a time, but one runs already at {node['address']} "
                f"(process {node['pid']}); stop it with `tandem down` first."
            )


def _noted_address() -> str:
    """Where the cluster is whose node was started here."""
    for _, node in _noted():
        return str(node["address"])
    raise ClusterError(
        "A cluster's status needs its address, but none was given and `tandem up` started none here; "
        "give --address HOST:PORT."
    )


def _noted() -> list[tuple[Side, dict[str, Any]]]:
    """The nodes started here that still run, device first."""
    return [(role, node) for role in SIDES if (node := _read(_note_file(role)))]


def _read(path: Path) -> dict[str, Any] | None:
    """A node's note; None if there is none, it is unreadable, or its process has gone."""
    try:
        note = json.loads(path.read_text("utf-8"))
        node, ticks = dict(note["node"]), note["started_ticks"]
        return node if ticks is not None and _started_ticks(int(node["pid"])) == ticks else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note(role: Side, node: dict[str, Any]) -> None:
    note = {"node": node, "started_ticks": _started_ticks(int(node["pid"]))}
    _note_file(role).write_text(json.dumps(note, indent=2) + "\n", "utf-8")


def _note_file(role: Side) -> Path:
    return state_folder() / f"{role}.json"


def _started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it does not run. See proc(5), stat, field 22."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


@contextmanager
def _locked() -> Iterator[None]:
    """Keeps two commands from starting or stopping nodes at once."""
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
