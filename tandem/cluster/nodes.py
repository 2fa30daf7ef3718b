"""Starts Ray nodes as child processes and stops exactly those.

A node has a role, `device` or `cloud`, given to Ray as a custom resource, by which actors are placed. Knows nothing
of actors or queries.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import ClusterError
from tandem.topology import Party

PARTY_RESOURCE = "tandem_{role}"
"""Custom resource that a node of a role offers; an actor of that side takes a sliver of it."""
ACTORS_PER_NODE = 6
OBJECT_STORE_BYTES = 100_000_000  # nothing large is put there
_SOCKETS = f"tandem-{os.getuid()}-"
FRESH_S = 60.0
"""A folder for sockets younger than this may belong to a cluster that is just starting."""
STOP_LIMIT_S = 5.0


def node_environment() -> dict[str, str]:
    """Environment of a node: no usage reports, token authentication unless the user has chosen otherwise."""
    environment = dict(os.environ)
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    environment.setdefault("RAY_AUTH_MODE", "token")
    if environment["RAY_AUTH_MODE"] == "token" and not any(
        name in environment for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    ):
        environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    return environment


@dataclass(frozen=True, slots=True)
class Host:
    """Where a node runs: on this machine as it is, or in a network namespace or on one core of it."""

    address: str | None = None  # of the node, as the other one reaches it; None: Ray's choice
    prefix: tuple[
        str, ...
    ] = ()  # stands before the node's command, such as `ip netns exec NAME taskset -c 1`


@dataclass(slots=True)
class NodeInfo:
    """A Ray node that this process, or `tandem up`, started."""

    role: Party
    address: str  # of the cluster's head, host:port
    pid: int  # of the `ray start` process, head of its own process group
    directory: str  # temporary files of the head; empty for a node that joined
    log: str  # what the node printed

    def is_running(self) -> bool:
        """Whether its process is there."""
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
                return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> None:
        """Ask it to stop, with all that it started, and kill what is left after a while; remove its files."""
        family = _family(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        if left := self._wait(family, STOP_LIMIT_S):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._wait(left, STOP_LIMIT_S)
        self.is_running()  # reaps it, if it is our child
        with contextlib.suppress(OSError):
            os.unlink(self.log)
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _wait(self, family: dict[int, str], limit_s: float) -> dict[int, str]:
        """Wait for processes to end, and for what they start meanwhile; returns those that still run."""
        deadline_s = time.monotonic() + limit_s
        while left := {pid: born for pid, born in family.items() if _born(pid) == born}:
            family = _family(*left)
            if time.monotonic() > deadline_s:
                return left
            time.sleep(0.02)
        return {}


ANYWHERE = Host()


def start_head(role: Party, *, environment: dict[str, str], host: Host = ANYWHERE, port: int = 0) -> NodeInfo:
    """Start the first node of a cluster. Returns at once; `wait_for_port` says when it can be joined."""
    directory = tempfile.mkdtemp(prefix="tandem-ray-")
    port = port or free_port()
    arguments = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={directory}"]
    return _start(role, f"{host.address or '127.0.0.1'}:{port}", arguments, environment, host, directory)


def join(role: Party, address: str, *, environment: dict[str, str], host: Host = ANYWHERE) -> NodeInfo:
    """Start a node that joins the cluster at `address`."""
    return _start(role, address, [f"--address={address}"], environment, host, "")


def wait_for_port(address: str, limit_s: float, node: NodeInfo | None = None) -> None:
    """Wait until something listens at `address`; ClusterError if `node` ends or `limit_s` passes."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 0.5):
            return
        if node is not None and not node.is_running():
            break
        time.sleep(0.05)
    raise ClusterError(
        f"A Ray head must answer at {address} within {limit_s:.0f} s but did not"
        + (f" (see {node.log}); " if node else "; ")
        + "check the address, or start one with `tandem up`."
    )


def socket_folder(key: str) -> str:
    """Where the actors of one cluster keep their Unix-domain sockets on this machine."""
    return str(Path(tempfile.gettempdir()) / f"{_SOCKETS}{key}")


def remove_dead_socket_folders() -> None:
    """Remove folders whose sockets nobody answers any more: their cluster was stopped or killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SOCKETS}*"):
        with contextlib.suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > FRESH_S
            if is_old and not any(_answers(path) for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(0.5)
        probe.connect(str(path))
        return True
    return False


def free_port() -> int:
    """A TCP port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    role: Party,
    address: str,
    arguments: list[str],
    environment: dict[str, str],
    host: Host,
    directory: str,
) -> NodeInfo:
    descriptor, log = tempfile.mkstemp(prefix=f"tandem-{role}-", suffix=".log", dir=directory or None)
    command = [
        *host.prefix,
        *_ray_program(),
        "start",
        "--block",
        *arguments,
        *([f"--node-ip-address={host.address}"] if host.address else []),
        f"--num-cpus={ACTORS_PER_NODE}",  # also the number of workers that Ray starts ahead
        "--num-gpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--resources={json.dumps({PARTY_RESOURCE.format(role=role): 1000})}",
        "--disable-usage-stats",
    ]
    with os.fdopen(descriptor, "wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return NodeInfo(role, address, process.pid, directory, log)


def _ray_program() -> list[str]:
    beside = Path(sysconfig.get_path("scripts")) / "ray"
    if beside.exists():
        return [str(beside)]
    return [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


def _family(*roots: int) -> dict[int, str]:
    """Processes and all that they started, all the way down, each with its time of birth."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            parents[int(folder.name)] = int(fields[1])
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: born for pid in found if (born := _born(pid)) is not None}


def _born(pid: int) -> str | None:
    """When a process started, in clock ticks since boot, by which a reused id is told apart; None: it has ended."""
    fields = _stat(pid)
    return None if not fields or fields[0] == "Z" else fields[19]


def _stat(pid: int) -> list[str]:
    """Fields of proc(5) stat from the third on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
