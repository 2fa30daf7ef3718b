"""Starts Ray nodes as child processes and stops exactly those.

A node belongs to a party, such as `device`, given to Ray as a custom resource, by which actors are placed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.sites.port import Host
from tandem.system.addresses import is_loopback

PARTY_RESOURCE = "tandem_{party}"
"""Custom resource that a party's node offers; each of its actors takes a sliver of it."""
OWN_RESOURCE = "tandem_node_"
"""Beginning of the name of a custom resource that one node alone offers."""
UNITS = 1000
"""Of each custom resource that a node offers; an actor takes a thousandth of one."""
ACTORS_PER_NODE = 6
OBJECT_STORE_BYTES = 100_000_000  # nothing large is put there
_SOCKETS = f"tandem-{os.getuid()}-"
FRESH_S = 60.0
"""A folder for sockets younger than this may belong to a cluster that is just starting."""
STOP_LIMIT_S = 5.0
PROBE_S = 0.5
MAX_HEALTH_FAILURES = "20"
"""Ray's head asks each node every 3 s whether it lives, and gives it up for good after 5 failures: where connections
are refused, a cut of 10 s was enough. 20 last a minute, as long as a node waits for its head."""
LOOPBACK = "127.0.0.1"
ON_LOOPBACK = "import ray._private.services as services; services.resolve_ip_for_localhost = str"
"""For Ray's own command, as Python: a node of this machine alone listens on its loopback interface, where Ray itself
would take its address in the network and listen everywhere."""
WITH_OWNER = """
import atexit, os, shutil, signal, threading, time
def is_orphan():
    return os.getppid() != {owner}
def watch():
    while not is_orphan():
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep({limit_s})
    os.killpg(0, signal.SIGKILL)
atexit.register(lambda: is_orphan() and shutil.rmtree({directory!r}, ignore_errors=True))
threading.Thread(target=watch, daemon=True).start()
"""
"""Likewise: a node ends, with all that it started, once the process that started it is gone, however that ended. The
kernel's own signal for this would come as soon as the thread that started the node ends."""
ONCE_HEAD_LISTENS = """
import ray.scripts.scripts, socket, time
while True:
    try:
        socket.create_connection({head!r}, 0.5).close()
        break
    except OSError:
        time.sleep(0.05)
"""
"""Likewise: a node that ends with its owner may be started beside its head, and imports what it needs meanwhile."""


def node_environment() -> dict[str, str]:
    """Environment of a node: no usage reports, token authentication unless the user has chosen otherwise."""
    environment = dict(os.environ)
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    environment.setdefault("RAY_AUTH_MODE", "token")
    if environment["RAY_AUTH_MODE"] == "token" and not any(
        name in environment for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    ):
        environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    environment.setdefault("RAY_health_check_failure_threshold", MAX_HEALTH_FAILURES)
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    return environment


@dataclass(slots=True)
class NodeInfo:
    """A Ray node that this process, or `tandem up`, started."""

    party: str
    address: str  # of the cluster's head, host:port
    pid: int  # of the `ray start` process, head of its own process group
    directory: str  # temporary files of the head; empty for a node that joined
    log: str  # what the node printed
    resource: str = ""  # its own, see OWN_RESOURCE
    token: str | None = field(
        default=None, repr=False
    )  # of the cluster; None where the user's environment provides it
    settings: dict[str, str] = field(default_factory=dict)  # see `start_settings`

    @property
    def is_head(self) -> bool:
        """Whether the node holds its cluster together, so that it has to stop last."""
        return bool(self.directory)

    def is_running(self) -> bool:
        """Whether its process runs; reaps it if it is an ended child of this one."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0)
                return False
            return True
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            return False

    def stop(self) -> None:
        """Ask it to stop, with all that it started, kill what is left after a while, and remove its files."""
        processes = _with_descendants(self.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).terminate()
        if left := _wait_for_end(processes, STOP_LIMIT_S):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _wait_for_end(left, STOP_LIMIT_S)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(self.pid).wait(STOP_LIMIT_S)  # reaps a child, whose other threads end later
        with contextlib.suppress(OSError):
            os.unlink(self.log)
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)


def start(
    party: str,
    config: Config,
    *,
    environment: dict[str, str],
    join: str | None = None,
    host: Host,
    is_owned: bool = False,
) -> NodeInfo:
    """Start a node, the first of a cluster or one that joins at `join`, and return at once.

    is_owned: it ends with this process, and waits for its head; else only `NodeInfo.stop` ends it.
    """
    directory, address = "", join or ""
    role = [f"--address={join}"]
    if not address:
        directory = tempfile.mkdtemp(prefix="tandem-ray-")
        with socket.create_server((LOOPBACK, 0)) as probe:
            port = probe.getsockname()[1]  # that nobody uses at the moment
        address = f"{host.address or LOOPBACK}:{port}"
        role = ["--head", f"--port={port}", f"--temp-dir={directory}"]
        role += ["--include-dashboard=false", "--no-monitor"]
    descriptor, log = tempfile.mkstemp(prefix=f"tandem-{party}-", suffix=".log", dir=directory or None)
    own = f"{OWN_RESOURCE}{secrets.token_hex(8)}"
    offered = (PARTY_RESOURCE.format(party=party), own)
    where = host.address or (LOOPBACK if is_loopback(address.rpartition(":")[0]) else "")
    before = [ON_LOOPBACK] if where and is_loopback(where) else []
    if is_owned:
        before.append(WITH_OWNER.format(owner=os.getpid(), limit_s=STOP_LIMIT_S, directory=directory))
        if join:
            before.append(ONCE_HEAD_LISTENS.format(head=tuple(join.rsplit(":", 1))))
    command = [
        *host.prefix,
        *_ray_program(before),
        "start",
        "--block",
        *role,
        *([f"--node-ip-address={where}"] if where else []),
        f"--num-cpus={ACTORS_PER_NODE}",  # also the number of workers that Ray starts ahead
        *([] if config.party(party).gpus_per_decoder else ["--num-gpus=0"]),
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--resources={json.dumps(dict.fromkeys(offered, UNITS))}",
        "--disable-usage-stats",
        "--include-log-monitor=false",  # nobody is sent logs
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
    return NodeInfo(party, address, process.pid, directory, log, own)


def wait_for_port(address: str, limit_s: float, node: NodeInfo | None = None) -> None:
    """Wait until something listens at `address`; ClusterError if `node` ends or `limit_s` passes."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if is_listening(address):
            return
        if node is not None and not node.is_running():
            break
        time.sleep(0.05)
    raise ClusterError(
        f"A Ray head must answer at {address} within {limit_s:.0f} s but did not"
        + (f" (see {node.log}); " if node else "; ")
        + "check the address, or start one with `tandem up`."
    )


def is_listening(address: str) -> bool:
    """Whether something accepts connections at host:port."""
    host, _, port = address.rpartition(":")
    with (
        contextlib.suppress(OSError, ValueError, OverflowError),
        socket.create_connection((host, int(port)), PROBE_S),
    ):
        return True
    return False


def socket_folder(key: str) -> str:
    """The folder of the Unix-domain sockets of one cluster's actors on this machine."""
    return str(Path(tempfile.gettempdir()) / f"{_SOCKETS}{key}")


def remove_dead_socket_folders() -> None:
    """Remove folders whose sockets nobody answers any more: their cluster was stopped or killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SOCKETS}*"):
        with contextlib.suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > FRESH_S
            if is_old and not any(answers(str(path), PROBE_S) for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def answers(path: str, limit_s: float | None = None) -> bool:
    """Whether something listens at a Unix-domain socket. limit_s: for the connection; None: no limit."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(limit_s)
        probe.connect(path)
        return True
    return False


def _ray_program(before: Sequence[str]) -> list[str]:
    beside = Path(sysconfig.get_path("scripts")) / "ray"
    if beside.exists() and not before:
        return [str(beside)]
    return [sys.executable, "-P", "-c", "\n".join([*before, "from ray.scripts.scripts import main; main()"])]


def _with_descendants(*pids: int) -> set[psutil.Process]:
    processes: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            processes |= {process, *process.children(recursive=True)}
    return processes


def _wait_for_end(processes: set[psutil.Process], limit_s: float) -> set[psutil.Process]:
    """Wait for processes to end, and for what they start meanwhile. Returns those that still run."""
    deadline_s = time.monotonic() + limit_s
    while left := {process for process in processes if _runs(process)}:
        if time.monotonic() > deadline_s:
            return left
        time.sleep(0.02)
        processes = left | _with_descendants(*(process.pid for process in left))
    return set()


def _runs(process: psutil.Process) -> bool:
    """Whether it is the same process as before, by its creation time, and not a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
