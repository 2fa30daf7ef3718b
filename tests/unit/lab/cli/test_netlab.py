"""`tandem lab netlab`: options become a shape, a state becomes lines. No network is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem_lab.cli import netlab as command
from tandem_lab.netlab.lab import NetLab
from tandem_lab.netlab.shape import Shape
from tests.unit.lab.netlab.machine import Machine


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A machine in memory, on which the commands work."""
    found = Machine()
    folder = tmp_path / "tandem" / "netlab"

    def lab(name: str, **options: Any) -> NetLab:
        return NetLab(name, folder=folder, run=found, require=lambda: None, **options)

    monkeypatch.setattr(command, "NetLab", lab)
    monkeypatch.setattr(command, "lab_names", lambda: ["lab"] if found.marks else [])
    return found


def test_up_says_what_shapes_it_and_how_to_enter(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--rtt",
        "100ms",
        "--jitter",
        "20ms",
        "--rate",
        "50mbit",
        "--loss",
        "1%",
        "--subnet",
        "10.99.0.0/24",
    ]
    assert main(["lab", "netlab", "up", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "The test network lab is up: RTT 100 ms, jitter 20 ms, 50 Mbit/s each way, loss 1 %.",
        "Shaped with tc netem by this machine's kernel.",
        "device  10.99.0.2       enter with: ip netns exec tandem-lab-device COMMAND",
        "cloud   10.99.0.130     enter with: ip netns exec tandem-lab-cloud COMMAND",
        "Change it: tandem lab netlab shape --rtt 200ms",
        "Remove it: tandem lab netlab down",
    ]
    assert len(machine.made("limit 1250 delay 50000us 10000us loss 1% rate 50000000bit")) == 2


def test_shape_changes_what_it_names_alone(capsys: pytest.CaptureFixture[str]) -> None:
    main(["lab", "netlab", "up", "--rtt", "100ms", "--rate", "50mbit"])
    capsys.readouterr()
    assert main(["lab", "netlab", "shape", "--rtt", "300ms"]) == 0
    assert capsys.readouterr().out == (
        "The link of lab has RTT 300 ms, jitter 0 ms, 50 Mbit/s each way, loss 0 %.\n"
    )
    assert main(["lab", "netlab", "shape", "--rate", "unlimited"]) == 0
    assert "no rate limit" in capsys.readouterr().out


def test_status_and_down(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "netlab", "status"]) == 0
    assert capsys.readouterr().out == "There is no test network here.\n"
    main(["lab", "netlab", "up", "--rtt", "100ms"])
    capsys.readouterr()
    assert main(["lab", "netlab", "status", "--json"]) == 0
    (state,) = json.loads(capsys.readouterr().out)["networks"]
    assert (state["state"], state["netem"]) == ("up", "host")
    assert Shape(**state["shape"]) == Shape(rtt_s=0.1)
    del machine.marks["tandem-lab-cloud"]
    assert main(["lab", "netlab", "status"]) == 0
    assert (
        "is broken; it lacks: tandem-lab-cloud.\nRemove what is left: tandem lab netlab down --name lab"
        in (capsys.readouterr().out)
    )
    assert main(["lab", "netlab", "down"]) == 0
    assert capsys.readouterr().out == "The test network lab is removed.\n"
    assert machine.marks == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "--rtt", "100"], "A duration is a number with its unit, such as 100ms"),
        (["up", "--name", "My Lab"], "A test network's name has 1 to 20 small letters"),
        (["up", "--subnet", "8.8.8.0/24"], "but 8.8.8.0/24 is public"),
        (["shape", "--rtt", "1ms"], "The test network 'lab' must be up, but it is not"),
        (["down"], "there is no test network 'lab' here; nothing was removed"),
    ],
)
def test_what_a_person_can_cause_is_one_sentence(
    arguments: list[str], sentence: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "netlab", *arguments]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert machine.marks == {}
