"""The order of the steps, on a machine that only exists in memory; `tests/network` does it for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.lab import NetLab, lab_names
from tandem_lab.netlab.shape import Shape
from tests.unit.lab.netlab.machine import Machine

SHAPE = Shape(rtt_s=0.1)


def lab(machine: Machine, folder: Path, name: str = "lab") -> NetLab:
    return NetLab(
        name,
        folder=folder / "tandem" / "netlab",
        run=machine,
        sleep=lambda _seconds: None,
        require=lambda: None,
    )


def test_up_shape_and_down_with_the_hosts_netem(tmp_path: Path) -> None:
    machine = Machine()
    state = lab(machine, tmp_path).up(SHAPE)
    assert (state.kind, state.router_pid) == ("host", None)
    assert set(machine.marks) == {"tandem-lab-device", "tandem-lab-cloud"}
    assert lab(machine, tmp_path).is_up()
    assert len(machine.made("delay 50000us")) == 2
    lab(machine, tmp_path).shape(Shape(rtt_s=0.2))
    assert machine.made("delay 100000us") == [
        f"tc -n tandem-lab-{host} qdisc replace dev eth0 root netem {' '.join(Shape(rtt_s=0.2).netem())}"
        for host in ("device", "cloud")
    ]
    assert lab(machine, tmp_path).current_shape() == Shape(rtt_s=0.2)
    lab(machine, tmp_path).down()
    assert machine.marks == {}
    assert list(tmp_path.iterdir()) == []


STEPS = (
    *("sh tandem-netlab:lab:device", "sh tandem-netlab:lab:cloud", "qdisc add dev lo", "link add eth0"),
    *("gso_max_segs", "address add 198.18.0.2/24", "neighbour replace", "netns exec tandem-lab-cloud"),
    *("qdisc replace dev eth0", "-json -4 route"),
)
"""Parts of the commands that `up` runs."""


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step_leaves_nothing(tmp_path: Path, step: str) -> None:
    machine = Machine(fails_at=step)
    with pytest.raises(NetLabError):
        lab(machine, tmp_path).up(SHAPE)
    assert machine.made(step)
    assert machine.marks == {}
    assert list(tmp_path.iterdir()) == []


def test_a_crashs_leftovers_are_seen_and_replaced(tmp_path: Path) -> None:
    machine = Machine()
    machine.add_leftover("lab", "device")
    machine.add_leftover("lab", "router")
    assert lab_names(tmp_path / "tandem" / "netlab", machine) == ["lab"]
    assert lab(machine, tmp_path).status()["state"] == "broken"
    lab(machine, tmp_path).up()
    assert "tandem-lab-router" not in machine.marks
    assert lab(machine, tmp_path).status()["state"] == "up"


@pytest.mark.parametrize("mark", ["", "mine", "tandem-netlab:other:device"])
def test_somebody_elses_namespace_is_never_touched(tmp_path: Path, mark: str) -> None:
    machine = Machine()
    machine.marks["tandem-lab-device"] = mark
    for call in (lab(machine, tmp_path).up, lab(machine, tmp_path).down):
        with pytest.raises(
            NetLabError, match="tandem-lab-device does not bear its mark; choose another --name"
        ):
            call()
    assert machine.marks == {"tandem-lab-device": mark}
    assert not machine.made("delete")
    assert lab_names(tmp_path / "tandem" / "netlab", machine) == []
