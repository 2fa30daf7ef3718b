"""The checks behind `tandem doctor`: all of them, and those on the machine itself.

Each looks at one thing, leaves nothing behind and takes milliseconds: no model is loaded, no cluster started.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tandem.cli.findings import Check, missing, ok, weak
from tandem.cli.model_checks import embedder, index, language_model, scorer
from tandem.config import Config
from tandem.paths import data_folder, state_folder
from tandem.retrieval.factory import kv_folder
from tandem.topology import PARTIES, Party

GIB = 1 << 30
MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 3 * GIB  # two models, the embedder and Ray's own processes
MIN_SHARED_BYTES = GIB // 4  # Ray's object store; Tandem keeps nothing large in it
MIN_DISK_BYTES = GIB
MIN_OPEN_FILES = 1024
GOOD_OPEN_FILES = 4096  # a Ray node opens some thousand when it is busy
MAX_FOLDER_CHARS = 40  # a Unix socket's path has at most 107, and Ray's are long

DISTRIBUTION = "tandem-rag"


def all_checks(config: Config) -> list[Check]:
    """Every check, in the order in which one would set up a machine."""
    installed = packages()
    checks = [python(), installed, cores(), memory()]
    checks += [
        shared_memory(Path("/dev/shm")),
        open_files(),
        ports(),
        temporary_folder(Path(tempfile.gettempdir())),
    ]
    checks += [writable("data folder", data_folder()), writable("state folder", state_folder())]
    if installed.status != "missing":
        checks.append(embedder(config))
        checks += [scorer(config)] if config.weights.scorer != "embedder" else []
        checks += [
            check(party, config.party(party)) for check in (language_model, index) for party in PARTIES
        ]
    checks += [stored_caches(party, config) for party in PARTIES]
    return checks


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """The interpreter."""
    found = ".".join(map(str, version))
    if version < MIN_PYTHON:
        return missing("python", found, "use Python 3.11 or later")
    return ok("python", found)


def packages() -> Check:
    """Every package that Tandem depends on, in a version that it admits."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return weak(
            "packages", f"{DISTRIBUTION} itself is not installed, so they are unknown", "pip install -e ."
        )
    needed = [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    problems = [problem for each in needed if (problem := _unmet(each.name, str(each.specifier)))]
    if problems:
        return missing("packages", "; ".join(problems), "pip install -c constraints.txt -e .[offline]")
    return ok(
        "packages",
        f"all {len(needed)}, such as torch {metadata.version('torch')}, ray {metadata.version('ray')}",
    )


def _unmet(name: str, specifier: str) -> str | None:
    """What is wrong with an installed package; None if nothing is."""
    from packaging.specifiers import SpecifierSet

    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    admitted = SpecifierSet(specifier).contains(found, prereleases=True)
    return None if admitted else f"{name} is {found}, not {specifier}"


def cores(count: int | None = None) -> Check:
    """CPU cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if count is None else count
    if count < 2:
        return weak(
            "cores", f"{count}", "both sides on one machine want 2 cores; put the sides on two machines"
        )
    return ok("cores", f"{count}")


def memory(available_bytes: int | None = None) -> Check:
    """Memory that is free for new processes."""
    available_bytes = _available_bytes() if available_bytes is None else available_bytes
    found = f"{available_bytes / GIB:.1f} GiB free"
    if available_bytes < MIN_MEMORY_BYTES:
        return weak(
            "memory", found, f"free some: both sides on one machine want {MIN_MEMORY_BYTES // GIB} GiB"
        )
    return ok("memory", found)


def _available_bytes() -> int:
    """MemAvailable of proc(5), within the limit of the control group if there is one."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


def shared_memory(folder: Path) -> Check:
    """Where Ray keeps its object store."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return weak(
            "shared memory", f"{folder}: {error.strerror}", "mount it; Ray uses a slower folder meanwhile"
        )
    found = f"{folder} has {free / GIB:.1f} GiB free"
    if free < MIN_SHARED_BYTES:
        return weak("shared memory", found, "enlarge it; in a container, start it with --shm-size=1g")
    return ok("shared memory", found)


def open_files(limit: int | None = None) -> Check:
    """How many files a process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "unlimited")
    if limit < MIN_OPEN_FILES:
        return missing("open files", f"at most {limit}", f"ulimit -n {GOOD_OPEN_FILES}")
    if limit < GOOD_OPEN_FILES:
        return weak("open files", f"at most {limit}", f"ulimit -n {GOOD_OPEN_FILES}")
    return ok("open files", f"at most {limit}")


def ports(address: str = "127.0.0.1") -> Check:
    """Whether processes may listen and connect here, as Ray's do."""
    try:
        with socket.create_server((address, 0)) as server:
            number = server.getsockname()[1]
            socket.create_connection((address, number), timeout=2).close()
    except OSError as error:
        return missing(
            "ports", f"{address} cannot be used ({error.strerror or error})", "allow local connections"
        )
    return ok("ports", f"{address} accepts connections")


def temporary_folder(folder: Path) -> Check:
    """Where Ray keeps its sockets and logs."""
    if len(str(folder)) > MAX_FOLDER_CHARS:
        return missing(
            "temporary", f"{folder} is too long for Ray's sockets", "set TMPDIR to a short path as /tmp"
        )
    check = writable("temporary", folder)
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if check.status == "ok" and free < MIN_DISK_BYTES:
        return weak("temporary", f"{folder} has {free / GIB:.1f} GiB free", "free 1 GiB there, or set TMPDIR")
    return check


def stored_caches(party: Party, config: Config) -> Check:
    """Where a side's caches of documents go."""
    name, own, folder = f"{party} caches", config.party(party), kv_folder(party, config)
    if own.kv_store != "disk":
        return ok(name, {"memory": "in memory", "off": "off"}[own.kv_store])
    check = writable(name, folder)
    if check.status != "ok":  # they are computed for each question instead
        return weak(name, check.found, f'{check.remedy}, or set {party}.kv_store = "memory"')
    used = sum(_size(path) for path in folder.glob("*/*/*"))
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if used + free < own.kv_max_bytes:
        found = f"{folder} has {free / GIB:.1f} GiB free, they may take {own.kv_max_bytes / GIB:.1f} GiB"
        return weak(name, found, f"free space there, or lower {party}.kv_max_bytes")
    return ok(name, str(folder))


def _size(path: Path) -> int:
    """Bytes of a file; 0 if another process has just removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def writable(name: str, folder: Path) -> Check:
    """Whether a folder, or the nearest one above it that is there, can be written to."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return ok(name, str(folder))
    except OSError as error:
        return missing(
            name, f"{folder} cannot be written ({error.strerror})", f"correct the rights of {nearest}"
        )
