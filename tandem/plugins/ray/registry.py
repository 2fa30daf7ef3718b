"""The nodes that `tandem up` started on this machine, a small private file per party, and which cluster is meant.

A file holds the node, its cluster's token and the start time of its process, so that `tandem down` never stops another
process that was given the same id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil

from tandem.config.schema import Config, explain_ignored
from tandem.errors import ClusterError
from tandem.plugins.ray.nodes import NodeInfo, is_listening
from tandem.system.paths import state_folder, write_private
from tandem.topology import PARTIES

_SUFFIX = ".json"
"""After the name of the party, in the name of its file."""


def token_file(party: str) -> Path:
    """The file that holds the token of the cluster whose head is this machine's node of `party`."""
    return state_folder() / f"{party}.token"


def running_nodes() -> list[NodeInfo]:
    """The nodes started here that still run, device first."""
    return [node for node, is_running in recorded_nodes() if is_running]


def recorded_nodes() -> list[tuple[NodeInfo, bool]]:
    """The nodes started here and not stopped by `tandem down`, device first, each with whether it still runs."""
    others = sorted({path.stem for path in state_folder().glob(f"*{_SUFFIX}")} - set(PARTIES))
    return [recorded for party in (*PARTIES, *others) if (recorded := _read(party)) is not None]


def running_node(party: str) -> NodeInfo | None:
    """The node of `party` that was started here, if it still runs."""
    return next((node for node in running_nodes() if node.party == party), None)


def register(node: NodeInfo) -> None:
    """Record a node for this user alone, and a head's token in a file to be copied. Raises ConfigError if it cannot."""
    fields = asdict(node)
    about = {name: fields.pop(name) for name in ("token", "settings")}
    content = {"node": fields, **about, "started_s": _seconds_after_boot(node.pid)}
    write_private(_entry_file(node.party), json.dumps(content, indent=2).encode() + b"\n")
    if node.is_head and node.token:
        write_private(token_file(node.party), node.token.encode() + b"\n")


def unregister(party: str) -> None:
    """Forget the node of a party and its token file, if there are any."""
    _entry_file(party).unlink(missing_ok=True)
    token_file(party).unlink(missing_ok=True)


def find_address(address: str | None, config: Config, progress: Callable[[str], None]) -> str:
    """The address of the cluster to use, by default that of the registry. Raises ClusterError if there is none."""
    address = address or find_local(config, progress)
    if not address:
        raise ClusterError(
            "No address of a cluster was given, and none that `tandem up` started runs on this machine; start one with "
            "`tandem up`, or name one as HOST:PORT."
        )
    return address


def find_local(config: Config, progress: Callable[[str], None]) -> str | None:
    """The address of the running cluster whose node `tandem up` started here for one of the settings' parties.

    Says so, and which settings count for nothing there; None if there is none.
    """
    gone: set[str] = set()
    recorded = [each for each in recorded_nodes() if each[0].party in config.parties]
    for node, is_running in recorded:
        if is_running and node.address not in gone and is_listening(node.address):
            progress(f"cluster: {node.address} is running here (tandem up {node.party})")
            beside = [other for other, runs in recorded if runs and other.address == node.address]
            if ignored := explain_ignored(config, [(other.party, other.settings) for other in beside]):
                progress(ignored)
            return node.address
        if node.address not in gone:
            progress(
                f"cluster: {node.address}, which `tandem up {node.party}` started here, no longer answers; "
                "`tandem down` forgets it"
            )
        gone.add(node.address)
    return None


@contextmanager
def locked() -> Iterator[None]:
    """Keep two commands from starting or stopping nodes at once. Raises ClusterError if the folder is not writable."""
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise ClusterError(
            f"The registry of running nodes cannot be kept in {folder} ({error.strerror}); check its permissions or "
            "set XDG_STATE_HOME."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tandem: waiting for another `tandem up` or `tandem down`", file=sys.stderr)  # noqa: T201
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(party: str) -> tuple[NodeInfo, bool] | None:
    """The recorded node of a party, and whether its process still runs; None if there is none or it is damaged."""
    try:
        content = json.loads(_entry_file(party).read_text("utf-8"))
        node = NodeInfo(**content["node"], token=content["token"], settings=dict(content["settings"]))
        started_s = content["started_s"]
        is_running = started_s is not None and _seconds_after_boot(node.pid) == started_s
        return (node, is_running) if node.address else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entry_file(party: str) -> Path:
    return state_folder() / f"{party}{_SUFFIX}"


def _seconds_after_boot(pid: int) -> float | None:
    """The time when a process started, whatever happens to the clock; None if it does not run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return round(float(process.create_time() - psutil.boot_time()), 2)
    return None
