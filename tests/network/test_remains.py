"""Nothing is left of a network: after `down`, after a failure half-way, after a crash. Nothing else is touched."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import tools
from tandem_lab.netlab.inside import run_inside
from tandem_lab.netlab.lab import NetLab, lab_names
from tandem_lab.netlab.shape import Shape
from tandem_lab.netlab.state import FOLDER
from tests.network.conftest import folders_left, has_netem, temporary_folders, traces_of, unique


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A network's name, of which nothing may be left."""
    found = unique("rest")
    before = traces_of(found)
    yield found
    assert traces_of(found) == before


def test_up_and_down_leave_nothing_and_end_what_ran_in_the_hosts(name: str) -> None:
    lab = NetLab(name)
    lab.up(Shape(rtt_s=0.1, jitter_s=0.02, rate_bits_per_s=5e7, loss=0.01))
    assert lab.is_up()
    assert name in lab_names()
    sleeper = subprocess.Popen([*lab.enter("cloud"), "sleep", "60"])
    time.sleep(0.2)
    assert NetLab(name).down() == 1
    assert sleeper.wait(timeout=5) == -signal.SIGTERM
    assert not lab.is_known()


@pytest.mark.parametrize(
    "step", ["unshare --net sh -e -c", "qdisc add dev lo", "link add eth0", "neighbour replace"]
)
def test_a_failure_half_way_leaves_nothing(name: str, step: str) -> None:
    calls: list[str] = []

    def run(command: Sequence[str]) -> str:
        calls.append(" ".join(command))
        if step in calls[-1] and sum(step in call for call in calls) == 1 + (
            step == "unshare --net sh -e -c"
        ):
            raise NetLabError(f"{step}: injected")
        return tools.run(command)

    with pytest.raises(NetLabError, match="injected"):
        NetLab(name, run=run).up()


def test_what_a_crash_left_is_seen_and_replaced(name: str) -> None:
    script = f"from tandem_lab.netlab import NetLab; NetLab({name!r}).up()"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    wait_for(FOLDER / name / "log" if not has_netem() else FOLDER / f"{name}.json")
    process.kill()
    process.wait()
    assert NetLab(name).status()["state"] == "broken"
    assert not NetLab(name).is_up()
    NetLab(name).up()
    assert NetLab(name).is_up()
    NetLab(name).down()


def test_a_command_that_is_killed_leaves_nothing(name: str) -> None:
    folders = temporary_folders()
    script = "import os, signal, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), signal.SIGKILL)"
    assert run_inside(NetLab(name), [sys.executable, "-c", script]) == 128 + signal.SIGKILL
    assert not folders_left(folders)


def test_somebody_elses_namespace_of_such_a_name_is_not_touched(name: str) -> None:
    foreign = f"tandem-{name}-cloud"
    tools.run(["ip", "netns", "add", foreign])
    try:
        for call in (NetLab(name).up, NetLab(name).down):
            with pytest.raises(NetLabError, match=f"{foreign} does not bear its mark"):
                call()
        assert name not in lab_names()
        assert foreign in tools.run(["ip", "netns", "list"])
    finally:
        tools.run(["ip", "netns", "delete", foreign])


def wait_for(file: Path) -> None:
    until_s = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)
