"""What `tandem doctor` checks on the machine itself, and the result of a check.

Each check looks at one thing, leaves nothing behind and takes milliseconds.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from tandem.corpora import AUTO, TOYS
from tandem.errors import DISTRIBUTION, TandemError, install_line

if TYPE_CHECKING:
    from tandem.config.schema import Config

GIB = 1 << 30
MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 3 * GIB  # two models, the embedder and Ray's own processes
MIN_SHARED_BYTES = GIB // 4  # Ray's object store; Tandem keeps nothing large in it
MIN_DISK_BYTES = GIB
MIN_OPEN_FILES = 1024
GOOD_OPEN_FILES = 4096  # a Ray node opens some thousand when it is busy
MAX_FOLDER_CHARS = 40  # a Unix socket's path has at most 107, and Ray's are long


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at and found."""

    name: str
    status: Literal["ok", "weak", "missing"]
    """missing: Tandem cannot run; weak: slow, or not for every purpose."""
    found: str
    remedy: str = ""  # empty where all is well


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name=name, status="ok", found=found)


def weak(name: str, found: str, remedy: str) -> Check:
    """Tandem runs, with a drawback."""
    return Check(name=name, status="weak", found=found, remedy=remedy)


def missing(name: str, found: str, remedy: str) -> Check:
    """Tandem cannot run."""
    return Check(name=name, status="missing", found=found, remedy=remedy)


def refused(name: str, error: TandemError) -> Check:
    """Tandem cannot run, as an error of one sentence says: the problem before its last semicolon, then the remedy."""
    problem, _, remedy = str(error).rstrip(".").rpartition("; ")
    return missing(name, problem or remedy, remedy if problem else "correct the setting")


def bundled_model_note(config: Config) -> str:
    """One sentence where the bundled model is given documents that are not the bundled ones; "" where not."""
    sections = [f"workers.{party}" if party in config.workers else str(party) for party in config.parties]
    parties = [config.party(party) for party in config.parties]
    names = [
        f"{section}.index"
        for section, own in zip(sections, parties, strict=True)
        if own.index not in (AUTO, "bundled") and own.num_documents
    ]
    if not names or all(own.model not in TOYS for own in parties):
        return ""
    name = "names others" if len(names) == 1 else "name others"
    return (
        f"The bundled model is a demonstration that can read the bundled documents only, but {' and '.join(names)} "
        f"{name}; set {' and '.join(f'{section}.model' for section in sections)} to a model of your own."
    )


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """The interpreter."""
    found = ".".join(map(str, version))
    if version < MIN_PYTHON:
        return missing("python", found, "use Python 3.11 or later")
    return ok("python", found)


def packages() -> Check:
    """Every package that Tandem depends on, in a version that it accepts."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return weak(
            "packages", f"{DISTRIBUTION} itself is not installed, so they are unknown", "pip install -e ."
        )
    needed = [need for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})]
    problems = [problem for need in needed if (problem := _unmet(need.name, str(need.specifier)))]
    if problems:
        return missing("packages", "; ".join(problems), install_line("offline"))
    return ok(
        "packages",
        f"all {len(needed)}, such as torch {metadata.version('torch')}, ray {metadata.version('ray')}",
    )


def _unmet(name: str, specifier: str) -> str | None:
    """What is wrong with an installed package; None if nothing is."""
    from packaging.specifiers import SpecifierSet

    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    is_accepted = SpecifierSet(specifier).contains(installed, prereleases=True)
    return None if is_accepted else f"{name} is {installed}, not {specifier}"


def cores(count: int | None = None) -> Check:
    """CPU cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if count is None else count
    if count < 2:
        return weak("cores", f"{count}", "both parties on one machine need 2 cores; run them on two machines")
    return ok("cores", f"{count}")


def memory(free_bytes: int | None = None) -> Check:
    """Memory that is free for new processes."""
    free_bytes = available_bytes() if free_bytes is None else free_bytes
    found = f"{free_bytes / GIB:.1f} GiB free"
    if free_bytes < MIN_MEMORY_BYTES:
        return weak(
            "memory", found, f"free some: both parties on one machine need {MIN_MEMORY_BYTES // GIB} GiB"
        )
    return ok("memory", found)


def available_bytes() -> int:
    """Free memory, within the limit of the control group if there is one."""
    free: int = psutil.virtual_memory().available
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
            "temporary", f"{folder} is too long for Ray's sockets", "set TMPDIR to a short path such as /tmp"
        )
    check = writable("temporary", folder)
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if check.status == "ok" and free < MIN_DISK_BYTES:
        return weak("temporary", f"{folder} has {free / GIB:.1f} GiB free", "free 1 GiB there, or set TMPDIR")
    return check


def writable(name: str, folder: Path) -> Check:
    """Whether a folder, or the nearest one above it that is there, can be written to."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return ok(name, str(folder))
    except OSError as error:
        return missing(
            name, f"{folder} cannot be written ({error.strerror})", f"correct the permissions of {nearest}"
        )
