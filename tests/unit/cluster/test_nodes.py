"""Stopping a node ends all that it started and nothing else; waiting until one is listed; where its token is from."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.plugins.ray import attach, nodes, registry
from tandem.plugins.ray.nodes import NodeInfo
from tandem.system.paths import state_folder
from tandem.topology import Party

LIMIT_S = 0.5
SLEEP = "import time; time.sleep(60)"
PARENT = f"""
import signal, subprocess, sys, time
{{setup}}
subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print("ready", flush=True)
time.sleep(60)
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"

Start = Callable[..., tuple[NodeInfo, list[psutil.Process]]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A process with a child, as a node; and both processes."""
    monkeypatch.setattr(nodes, "STOP_LIMIT_S", LIMIT_S)
    started: list[psutil.Process] = []

    def start(setup: str = "") -> tuple[NodeInfo, list[psutil.Process]]:
        command = [sys.executable, "-c", PARENT.format(setup=setup)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (log := tmp_path / "log").touch()
        (directory := tmp_path / "node").mkdir()
        parent = psutil.Process(process.pid)
        started.extend([parent, *parent.children()])
        node = NodeInfo(Party.DEVICE, "127.0.0.1:1", process.pid, str(directory), str(log))
        return node, started

    yield start
    for process in started:
        if process.is_running():
            process.kill()


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_node_stops_with_all_that_it_started(start: Start, tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SLEEP])
    node, processes = start()
    assert node.is_running()
    assert len(processes) == 2
    node.stop()
    assert not node.is_running()
    assert all(map(is_over, processes))
    assert list(tmp_path.iterdir()) == []
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_node_survives_a_cut_of_its_link_unless_the_user_wants_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's own threshold gives a node up 12 s after its connections are refused (`benchmarks/cluster_cuts.py`)."""
    name = "RAY_health_check_failure_threshold"
    monkeypatch.delenv(name, raising=False)
    assert int(nodes.node_environment()[name]) * 3 >= 60
    monkeypatch.setenv(name, "5")
    assert nodes.node_environment()[name] == "5"


@pytest.mark.parametrize(
    ("join", "host", "address"),
    [
        (None, "", "127.0.0.1"),
        (None, "192.0.2.7", "192.0.2.7"),
        ("127.0.0.1:6379", "", "127.0.0.1"),
        ("192.0.2.7:6379", "192.0.2.8", "192.0.2.8"),
        ("192.0.2.7:6379", "", ""),
    ],
)
def test_a_node_of_this_machine_alone_listens_on_its_loopback_interface(
    monkeypatch: pytest.MonkeyPatch, join: str | None, host: str, address: str
) -> None:
    """Ray itself would take an address of the network for the loopback's, and listen on all interfaces."""
    commands: list[list[str]] = []
    fake = SimpleNamespace(
        Popen=lambda command, **_: commands.append(command) or SimpleNamespace(pid=1),
        DEVNULL=subprocess.DEVNULL,
    )
    monkeypatch.setattr(nodes, "subprocess", fake)
    node = nodes.start("device", Config(), environment={}, join=join, host=nodes.Host(host or None))
    Path(node.log).unlink()
    (command,) = commands
    assert [each for each in command if each.startswith("--node-ip-address=")] == (
        [f"--node-ip-address={address}"] if address else []
    )
    assert any(nodes.ON_LOOPBACK in part for part in command) is (address == "127.0.0.1")
    assert node.address == join or node.address.startswith(f"{address}:")
    assert bool(node.directory) is (join is None)


OWNER = f"""
import subprocess, sys
from tandem.plugins.ray import nodes
from tandem.config.schema import Config
nodes.STOP_LIMIT_S = {LIMIT_S}
nodes._ray_program = lambda before: [sys.executable, "-c", before[-1] + {PARENT.format(setup=STUBBORN)!r}]
node = nodes.start("device", Config(), environment={{}}, host=nodes.Host("192.0.2.7"), is_owned=True)
print(node.pid, node.directory, flush=True)
sys.stdin.read()
"""


def test_a_node_ends_with_an_owner_that_was_killed() -> None:
    """Also one that does not listen, with all that it started itself."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        node = psutil.Process(int(pid))
        try:
            while not (children := node.children()):
                time.sleep(0.01)
            time.sleep(1.0)
            assert not is_over(node), "its owner runs"
            owner.kill()
            deadline_s = time.monotonic() + 30
            while not all(map(is_over, [node, *children])) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert all(map(is_over, [node, *children]))
        finally:
            owner.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)
            shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("ends", [True, False])
def test_a_node_that_never_joins(start: Start, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    node, processes = start()
    node.resource = "tandem_node_own"
    listed = [{"Alive": True, "Resources": {"tandem_node_other": 1000.0}}]
    monkeypatch.setattr(attach, "ray", SimpleNamespace(nodes=lambda: listed))
    if ends:
        processes[0].kill()
    with pytest.raises(ClusterError, match=r"The device's node did not join the cluster at 127\.0\.0\.1:1"):
        attach.wait_for_node(node, 60.0 if ends else 0.2)


ADDRESS = "10.0.0.1:6379"
NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, an empty registry, and nothing in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the code under test sets is undone
        monkeypatch.delenv(name)
    return tmp_path


def chosen() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in NAMES)


def record(token: str | None) -> None:
    state_folder().mkdir(parents=True, exist_ok=True)
    registry.register(NodeInfo("cloud", ADDRESS, os.getpid(), "", "", token=token))


def write_default_file(home: Path) -> Path:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("theirs")
    return home / ".ray" / "auth_token"


def test_the_recorded_token_counts_before_rays_own_file(home: Path) -> None:
    write_default_file(home)
    record("recorded")
    assert registry.find_token(ADDRESS) == "recorded"
    assert chosen() == ("token", "recorded", None)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_the_environment_counts_first_and_sets_the_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record("recorded")
    monkeypatch.setenv(name, "mine")
    registry.find_token(ADDRESS)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert registry.describe_source().startswith(name)


def test_a_token_file_that_ray_would_die_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "nowhere"))
    registry.find_token(ADDRESS)
    with pytest.raises(ClusterError, match=r"^The token file .*nowhere cannot be read \(No such file"):
        registry.check_token_file()


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1", "[::1]", "localhost"])
def test_what_stays_on_this_machine_needs_no_protection(host: str) -> None:
    registry.require_protection(host, Config())


def test_a_node_that_others_reach_is_refused_without_tls_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    host, plain = "10.0.0.1", Config.load(None, ["link.allow_plain=true"])
    with pytest.raises(
        ClusterError, match=r"\(10\.0\.0\.1\) needs TLS \(RAY_USE_TLS=1 and certificates\), since"
    ):
        registry.require_protection(host, Config())
    registry.require_protection(host, plain)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    registry.require_protection(host, Config())
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ClusterError, match=r"needs a token \(RAY_AUTH_MODE=token\), since"):
        registry.require_protection(host, Config())
    monkeypatch.delenv("RAY_USE_TLS")
    with pytest.raises(ClusterError, match=r"certificates\) and a token"):
        registry.require_protection("cloud.example", Config())


@pytest.mark.parametrize(("join", "settings"), [(None, ["link.host=10.0.0.1"]), ("10.0.0.1:6379", [])])
def test_no_such_node_is_started(join: str | None, settings: list[str]) -> None:
    with pytest.raises(ClusterError, match=r"10\.0\.0\.1\) needs TLS"):
        attach.start_node("device", join=join, config=Config.load(None, settings))
