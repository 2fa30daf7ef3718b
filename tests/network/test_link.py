"""The link does what it was asked to do, as ping and TCP see it. One network for all of this file."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem_lab.netlab import play
from tandem_lab.netlab.lab import NetLab
from tandem_lab.netlab.ping import replies_in
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow
from tandem_lab.netlab.shape import Shape
from tandem_lab.replay.records import Reply
from tests.network.conftest import traces_of, unique

pytestmark = pytest.mark.timed
STREAM = str(Path(__file__).with_name("stream.py"))


@pytest.fixture(scope="module")
def lab() -> Iterator[NetLab]:
    """A network that is up; nothing may be left of it afterwards."""
    built = NetLab(unique("link"))
    before = traces_of(built.name)
    with built.while_up():
        yield built
    assert traces_of(built.name) == before


@pytest.fixture(autouse=True)
def plain_link(lab: NetLab) -> None:
    lab.shape(Shape())


def run_in(lab: NetLab, host: str, *command: str) -> str:
    """What a command in a host prints."""
    command = (*lab.enter(host), *command)
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def start_pings(lab: NetLab, count: int, interval_s: float, patience_s: float = 1.0) -> subprocess.Popen[str]:
    """Pings from the device to the cloud."""
    options = ["-D", "-n", "-c", str(count), "-i", str(interval_s), "-W", str(patience_s)]
    command = [*lab.enter("device"), "ping", *options, lab.address("cloud")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def replies_of(process: subprocess.Popen[str]) -> tuple[Reply, ...]:
    """Waits for it; the replies in the order in which they were asked for."""
    return replies_in(process.communicate(timeout=60)[0])


@pytest.mark.parametrize("rtt_ms", [0, 100, 300])
def test_the_measured_rtt_is_the_injected_one(lab: NetLab, rtt_ms: int) -> None:
    lab.shape(Shape(rtt_s=rtt_ms / 1e3))
    medians_ms = []
    for _attempt in range(3):  # a machine that is busy with something else for a second must not fail this
        rtts_ms = [1e3 * reply.rtt_s for reply in replies_of(start_pings(lab, 21, 0.05))]
        assert len(rtts_ms) == 21
        medians_ms.append(statistics.median(rtts_ms))
        if abs(medians_ms[-1] - rtt_ms) <= 0.03 * rtt_ms + 1:
            return
    pytest.fail(f"medians {medians_ms} ms")


def test_a_link_that_goes_away_returns(lab: NetLab) -> None:
    there, gone = Shape(rtt_s=0.02), Shape(rtt_s=0.02, loss=1.0)
    trace = LinkSchedule(
        "short outage", (ScheduleRow(0, there), ScheduleRow(0.6, gone), ScheduleRow(1.6, there))
    )
    process = start_pings(lab, 140, 0.02)
    time.sleep(0.1)
    start_s = time.time()
    applied = list(play(lab, trace, time.monotonic, time.sleep))
    replies = replies_of(process)
    assert [row.time_s for row in applied] == pytest.approx([0, 0.6, 1.6], abs=0.2)
    gone_s, back_s = start_s + 0.8, start_s + 1.55
    assert not [reply for reply in replies if gone_s < reply.sent_s < back_s]
    assert len([reply for reply in replies if reply.sent_s < start_s + 0.55]) > 15
    assert len([reply for reply in replies if reply.sent_s > start_s + 1.8]) > 15


def test_loss_is_a_share_of_the_packets_each_way(lab: NetLab) -> None:
    lab.shape(Shape(loss=0.3))
    replies = replies_of(start_pings(lab, 300, 0.003, patience_s=0.3))
    # Each of 300 comes back with probability 0.49; 6 standard deviations are 52: false alarm about 2e-9.
    assert 147 - 52 < len(replies) < 147 + 52


@pytest.mark.parametrize(
    ("rate_mbit", "sender", "port"), [(5, "device", None), (50, "cloud", None), (5, "cloud", 5201)]
)
def test_a_rate_is_kept(lab: NetLab, rate_mbit: int, sender: str, port: int | None) -> None:
    lab.shape(Shape(rtt_s=0.02, rate_bits_per_s=rate_mbit * 1e6, rate_port=port))
    assert stream_bits_per_s(lab, sender) == pytest.approx(rate_mbit * 1e6, rel=0.15)


def stream_bits_per_s(lab: NetLab, sender: str) -> float:
    """How fast one TCP stream on port 5201 is."""
    receiver = "cloud" if sender == "device" else "device"
    address = lab.address(receiver)
    command = [*lab.enter(receiver), sys.executable, "-I", STREAM, "receive", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        run_in(lab, sender, sys.executable, "-I", STREAM, "send", address, "2")
        num_bytes, seconds = map(float, process.communicate(timeout=20)[0].split())
    return 8 * num_bytes / seconds


def test_a_host_sees_the_link_and_nothing_else(lab: NetLab) -> None:
    for host in ("device", "cloud"):
        links = json.loads(run_in(lab, host, "ip", "-json", "link", "show"))
        assert [link["ifname"] for link in links] == ["lo", "eth0"]
        assert "default" not in run_in(lab, host, "ip", "route", "show")
