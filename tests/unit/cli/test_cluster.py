"""`tandem up` and `down` against a scripted launcher whose nodes are sleeping processes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.plugins.ray import registry
from tandem.plugins.ray.registry import token_file
from tandem.system.paths import state_folder
from tandem.topology import Party

from .conftest import FakeLauncher, Run


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """How this installation's command is typed."""
    monkeypatch.setattr("tandem.plugins.ray.command.this_command", lambda: ".venv/bin/tandem")


def test_up_and_down(launcher: FakeLauncher, run: Run) -> None:
    launcher.losses[Party.CLOUD] = "The cloud side is not up."
    shown = run("up", "device", code=0)
    pid = launcher.processes[0].pid
    assert shown.out.splitlines() == [
        "The device node is up at 127.0.0.1:7001.",
        "Other machines cannot reach this address; for them, start with --set link.host=ADDRESS.",
        "Start the other party: .venv/bin/tandem up cloud",
        'Then ask here: .venv/bin/tandem ask "Which game should Mira try?"',
    ]
    assert launcher.calls == [
        ("start_node", Party.DEVICE, None),
        ("attach", "127.0.0.1:7001"),
        ("wait_for_node", Party.DEVICE),
        ("start_party", Party.DEVICE),
    ]
    assert f"The device node (process {pid}) is down." in run("down", code=0).out
    assert launcher.calls[-1] == ("stop_node", Party.DEVICE, pid)
    assert registry.running_nodes() == []


@pytest.mark.parametrize("join", [["--join", "127.0.0.1:7001"], []])
def test_a_second_node_here_finds_the_first_and_its_token_and_goes_down_first(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, join: list[str]
) -> None:
    assert main(["up", "cloud"]) == 0
    token = os.environ["RAY_AUTH_TOKEN"]
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert main(["up", "device", *join]) == 0
    assert ("start_node", Party.DEVICE, "127.0.0.1:7001") in launcher.calls
    assert (os.environ["RAY_AUTH_TOKEN"], os.environ["RAY_AUTH_MODE"]) == (token, "token")
    assert main(["down"]) == 0
    stopped = [call[1] for call in launcher.calls if call[0] == "stop_node"]
    assert stopped == [Party.DEVICE, Party.CLOUD]  # the cloud's holds the cluster together


def test_the_token_is_in_a_private_file_and_never_printed(launcher: FakeLauncher, run: Run) -> None:
    launcher.address = "10.0.0.1:7001"
    launcher.losses[Party.CLOUD] = "The cloud side is not up."
    shown, file = run("up", "device", code=0), token_file(Party.DEVICE)
    token = os.environ["RAY_AUTH_TOKEN"]
    assert file.read_text() == f"{token}\n"
    for path in (file, state_folder() / "device.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in shown.out + shown.err
    assert f"copy the cluster's token there: {file}\n" in shown.out
    assert "tandem up cloud --join 10.0.0.1:7001 --token-file FILE\n" in shown.out
    assert main(["down"]) == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "The token file copied cannot be read (No such file or directory)"),
        (b" ", "The token file copied is empty"),
        (b"\xff", "The token file copied cannot be read (not a text file)"),
    ],
)
def test_a_token_file_that_holds_none(
    launcher: FakeLauncher, content: bytes | None, sentence: str, run: Run
) -> None:
    if content is not None:
        Path("copied").write_bytes(content)
    assert sentence in run("up", "cloud", "--join", "10.0.0.1:6379", "--token-file", "copied", code=1).err
    assert launcher.calls == []


@pytest.mark.parametrize("settled", ["mode", "token", "file"])
def test_a_users_own_choice_of_authentication_counts(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, settled: str
) -> None:
    variables = {"mode": ("RAY_AUTH_MODE", "disabled"), "token": ("RAY_AUTH_TOKEN", "mine")}
    if settled in variables:
        monkeypatch.setenv(*variables[settled])
    else:
        (Path.home() / ".ray").mkdir(parents=True)
        (Path.home() / ".ray" / "auth_token").write_text("theirs")
    assert main(["up", "cloud", "--join", "10.0.0.1:6379"]) == 0
    assert os.environ.get("RAY_AUTH_TOKEN") == ("mine" if settled == "token" else None)
    assert os.environ["RAY_AUTH_MODE"] == ("disabled" if settled == "mode" else "token")


def test_dead_actors_are_replaced_on_their_node(launcher: FakeLauncher, run: Run) -> None:
    assert main(["up", "device"]) == 0
    launcher.losses[Party.DEVICE] = "The device side's actor device/decoder has died."
    launcher.calls.clear()
    assert "The device side's actor device/decoder has died." in run("up", "device", code=0).err
    assert launcher.calls == [("attach", "127.0.0.1:7001"), ("start_party", Party.DEVICE)]
    assert registry.running_node(Party.DEVICE) is not None
    assert main(["up", "device"]) == 1, "all are alive again"


@pytest.mark.parametrize("case", ["the head is gone", "another cluster is to be joined"])
def test_a_node_that_cannot_be_repaired_is_replaced(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    assert main(["up", "device"]) == 0
    pid, join = launcher.processes[0].pid, []
    if case == "the head is gone":
        launcher.is_up = False
    else:
        launcher.losses[Party.DEVICE] = "The device side's actor device/decoder has died."
        join = ["--join", "10.0.0.1:6379"]
        monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    launcher.calls.clear()
    assert main(["up", "device", *join]) == 0
    assert launcher.calls[:2] == [
        ("stop_node", Party.DEVICE, pid),
        ("start_node", Party.DEVICE, join[1] if join else None),
    ]
    entry = registry.running_node(Party.DEVICE)
    assert entry is not None
    assert entry.pid == launcher.processes[1].pid


def test_a_joined_node_whose_cluster_is_gone_starts_no_cluster_of_its_own(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    assert main(["up", "device", "--join", "10.0.0.1:6379"]) == 0
    launcher.is_up = False
    assert run("up", "device", code=1).err.splitlines()[-1] == (
        f"tandem: The device node of this machine (process {launcher.processes[0].pid}) joined the cluster at "
        "10.0.0.1:6379, which does not answer; stop the node with `tandem down`, or name the cluster to join with "
        "--join."
    )


def test_down_never_stops_another_process(launcher: FakeLauncher, run: Run) -> None:
    assert main(["up", "device"]) == 0
    launcher.processes[0].kill()
    launcher.processes[0].wait()
    file = state_folder() / "device.json"
    entry = json.loads(file.read_text())
    entry["node"]["pid"] = os.getpid()  # as if the system had given the number to another
    file.write_text(json.dumps(entry))
    shown = run("down", code=0)
    assert [call for call in launcher.calls if call[0] == "stop_node"] == []
    assert shown.out == f"The device node (process {os.getpid()}) had ended before.\n"
    assert not file.exists(), "it is forgotten"
