"""The order of the steps, on a machine that only exists in memory; `tests/network` does it for real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import router
from tandem_lab.netlab.lab import NetLab, lab_names
from tandem_lab.netlab.shape import Shape
from tandem_lab.netlab.state import State, Store
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


def test_a_router_that_cannot_be_booted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(has_netem=False)

    def boot(_self: object, _netem: object, _kernel: object) -> int:
        raise NetLabError("The router must be ready, but it is not.")

    monkeypatch.setattr(router, "module", lambda: Path("/sch_netem.ko"))
    monkeypatch.setattr(router.Router, "boot", boot)
    with pytest.raises(NetLabError, match="must be ready"):
        lab(machine, tmp_path).up(SHAPE)
    assert machine.made("sh tandem-netlab:lab:router")
    assert (machine.marks, list(tmp_path.iterdir())) == ({}, [])


def test_a_crashs_leftovers_are_seen_and_replaced(tmp_path: Path) -> None:
    machine = Machine()
    machine.add_leftover("lab", "device")
    machine.add_leftover("lab", "router")
    assert lab_names(tmp_path / "tandem" / "netlab", machine) == ["lab"]
    assert lab(machine, tmp_path).status()["state"] == "broken"
    lab(machine, tmp_path).up()
    assert "tandem-lab-router" not in machine.marks
    assert lab(machine, tmp_path).status()["state"] == "up"


def test_a_half_made_network_is_broken_and_can_be_removed(tmp_path: Path) -> None:
    machine = Machine()
    store = Store(tmp_path / "tandem" / "netlab")
    with store.locked():
        store.write(State(name="lab", subnet="198.18.0.0/24"))
    assert lab(machine, tmp_path).status()["lacks"] == ["completion"]
    with pytest.raises(
        NetLabError, match="must be up, but it is not; start it with `tandem lab netlab up --name lab`"
    ):
        lab(machine, tmp_path).shape(SHAPE)
    lab(machine, tmp_path).down()
    assert list(tmp_path.iterdir()) == []


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


def test_a_container_without_rights_is_told_so(tmp_path: Path) -> None:
    def refuse(command: list[str]) -> str:
        if command[0] == "unshare":
            raise NetLabError("`unshare` must succeed, but it said: Operation not permitted")
        return "[]"

    with pytest.raises(NetLabError, match="in a container, start it with --privileged"):
        lab(refuse, tmp_path).up()  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_while_up_leaves_a_network_that_was_up_before(tmp_path: Path) -> None:
    machine = Machine()
    lab(machine, tmp_path).up(SHAPE)
    with (
        pytest.raises(NetLabError, match="'lab' is up already"),
        lab(machine, tmp_path).while_up(),
    ):
        pass
    assert lab(machine, tmp_path).is_up()
    assert lab(machine, tmp_path).current_shape() == SHAPE


def test_a_network_that_is_removed_while_it_is_shaped_stays_removed(tmp_path: Path) -> None:
    machine = Machine()

    def remove_meanwhile(command: Sequence[str]) -> str:
        if "delay 100000us" in " ".join(command) and "tandem-lab-device" in machine.marks:
            lab(machine, tmp_path).down()
        return machine(command)

    for others in (["lab"], ["lab", "two"]):  # with another network the folder of notes stays
        for name in others:
            lab(machine, tmp_path, name).up()
        one = NetLab("lab", folder=tmp_path / "tandem" / "netlab", run=remove_meanwhile, require=lambda: None)
        with pytest.raises(NetLabError, match="The note of 'lab' must stay while its network is changed"):
            one.shape(Shape(rtt_s=0.2))
        assert lab(machine, tmp_path).status()["state"] == "absent"
        assert lab_names(tmp_path / "tandem" / "netlab", machine) == others[1:]
