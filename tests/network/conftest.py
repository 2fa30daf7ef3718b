"""Networks for tests, and the proof that nothing of them is left. Needs root, iproute2, ping, and netem somewhere."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import router, tools
from tandem_lab.netlab.layout import PREFIX
from tandem_lab.netlab.state import FOLDER

HERE = Path(__file__).parent
NOTE = (
    "Zephyrine Quobble hid seventeen cobalt umbrellas beneath the Vornwick windmill on a moonless Thursday."
)
"""A device's private document, no piece of which may be seen elsewhere."""
PIECES = ["Zephyrine Quobble", "seventeen cobalt umbrellas", "Vornwick windmill"]


def why_not() -> str:
    """Why this machine cannot run these tests; empty if it can."""
    try:
        tools.require()
        if tools.find("ping") is None:
            return "no ping: apt-get install iputils-ping"
        tools.run(["unshare", "--net", "true"])
        if not has_netem():
            router.module()
    except NetLabError as error:
        return str(error)
    return ""


def has_netem() -> bool:
    """Whether this machine's own kernel has netem."""
    try:
        tools.run(["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "0us"])
    except NetLabError:
        return False
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is in this folder, with the reason, where it cannot run; looks only if something is to run."""
    mine = [item for item in items if HERE in item.path.parents]
    reason = why_not() if mine else ""
    for item in mine:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def unique(name: str) -> str:
    """A network's name that no other run of the tests uses."""
    return f"{name}-{os.getpid()}"


def traces_of(name: str) -> dict[str, Any]:
    """Everything on this machine that could be left of a network."""
    links = json.loads(tools.run(["ip", "-json", "link", "show"]))
    routes = tools.run(["ip", "route", "show"])
    return {
        "namespaces": [
            each for each in tools.run(["ip", "netns", "list"]).split() if f"{PREFIX}{name}-" in each
        ],
        "links": sorted(link["ifname"] for link in links),
        "routes": routes,
        "mounts": [
            line
            for line in Path("/proc/mounts").read_text("utf-8").splitlines()
            if f"{PREFIX}{name}-" in line
        ],
        "files": sorted(str(file) for file in FOLDER.glob(f"{name}*")),
        "empty folders": [str(each) for each in (FOLDER.parent, FOLDER) if _is_empty(each)],
        "processes": [pid for pid, command in commands() if f"{PREFIX}{name}-" in command],
    }


def temporary_folders() -> set[Path]:
    """Folders for temporary files of commands in a network, of which none is running: another run may go on beside."""
    used = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            used |= {
                word[7:].decode() for word in file.read_bytes().split(b"\0") if word.startswith(b"TMPDIR=")
            }
    return {path for path in Path(tempfile.gettempdir()).glob("td-*") if str(path) not in used}


def folders_left(before: set[Path], limit_s: float = 60.0) -> set[Path]:
    """New ones that stay: another run's has no process while its network is being built."""
    left = temporary_folders() - before
    until_s = time.monotonic() + limit_s
    while left and time.monotonic() < until_s:
        time.sleep(0.2)
        left &= temporary_folders()
    return left


def _is_empty(folder: Path) -> bool:
    """Whether a folder is there and nothing in it: another network's note keeps it."""
    return folder.is_dir() and not any(folder.iterdir())


def commands() -> Iterator[tuple[int, str]]:
    """Every process of this machine with its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (
                int(folder.name),
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"),
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
