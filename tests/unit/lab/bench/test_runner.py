"""The benchmark's loop without a network: order of runs, predictions first, what an interruption leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.topology import Party
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.bench import runner
from tandem_lab.bench.dual import FLOORS_S, MIRROR
from tandem_lab.bench.plan import CellPlan, Plan, in_turns
from tandem_lab.bench.records import Cell, Models, Prediction, Record, Setting, read_cells
from tandem_lab.bench.runner import Bench
from tandem_lab.bench.systems import BY_NAME, System
from tandem_lab.netlab import Shape
from tandem_lab.netlab.lab import Counters
from tandem_lab.netlab.packets import Packet
from tests.unit.lab.bench.cells import TOKENS, record

SETTING = Setting(floors_s=FLOORS_S, rtt_s=0.0, temperature=0.0, max_new_tokens=48)
SYSTEMS = (BY_NAME["CRCG/device"], MIRROR)


class Stage:
    """Everything that the loop touches, and what was done in which order."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.fails_at: tuple[float, int] | None = None  # round trip, run
        self.rtt_s = 0.0
        self.counters_read = 0

    # a NetLab
    def shape(self, shape: Shape) -> None:
        self.rtt_s = shape.rtt_s

    def address(self, party: str) -> str:
        return "198.18.0.2"

    def counters(self, party: str) -> Counters:
        self.counters_read += 4000
        return Counters(
            sent_bytes=self.counters_read,
            received_bytes=2 * self.counters_read,
            sent_packets=0,
            received_packets=0,
        )

    # a cluster and who asks it
    @contextlib.contextmanager
    def launch(self, lab: Any, config: Config, say: Any, experiments: Experiments) -> Iterator[Stage]:
        device_s = experiments.min_decode_time_s[Party.DEVICE]
        self.done.append(("launch", device_s, config.device.model))
        yield self

    @contextlib.contextmanager
    def join(
        self, lab: Any, config: Config, experiments: Experiments, say: Any
    ) -> Iterator[tuple[Stage, Stage]]:
        device_s = experiments.min_decode_time_s[Party.DEVICE]
        self.done.append(("join", device_s, config.device.model))
        yield self, self

    def prepare(self, questions: Any) -> None:
        self.done.append("prepare")

    def ask(self, system: System, setting: Setting, question: str, number: int, run: int) -> Record:
        assert setting.rtt_s == self.rtt_s or run == -1
        if self.fails_at == (setting.rtt_s, run):
            raise KeyboardInterrupt
        self.done.append((setting.rtt_s, run, system.name, number))
        at_s = float(len(self.done))
        return record(
            system.name,
            0.1,
            run=run,
            question=number,
            asked_at_s=at_s,
            done_at_s=at_s + 0.5,
            settled_at_s=at_s + 0.6,
        )

    # a Predictor
    def predict(self, system: System, setting: Setting) -> Prediction:
        self.done.append("predict")
        return Prediction(
            token_s=0.07,
            acceptance={"device": 0.7, "cloud": 0.9},
            forwards={"device": 1.0, "cloud": 1.0},
        )

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        return (TOKENS, TOKENS)


class FakePing:
    def __init__(self, lab: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> tuple[Any, ...]:
        return ()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()

    @contextlib.contextmanager
    def capturing(lab: Any, path: Path, *_: Any, **__: Any) -> Iterator[None]:
        path.write_bytes(b"")
        yield

    monkeypatch.setattr(runner, "launch", stage.launch)
    monkeypatch.setattr(runner, "join_across", stage.join)
    monkeypatch.setattr(runner, "Asker", lambda tandem, baselines: tandem)
    monkeypatch.setattr(runner, "Baselines", lambda tandem: tandem)
    monkeypatch.setattr(runner, "capturing", capturing)
    monkeypatch.setattr(runner, "Ping", FakePing)
    monkeypatch.setattr(
        runner, "read_packets", lambda *_: [Packet(0.25 * n, Party.DEVICE, "data", 100) for n in range(1000)]
    )
    monkeypatch.setattr(runner, "IDLE_S", 0.001)
    return stage


def plan(*rtts_s: float, systems: tuple[System, ...] = SYSTEMS) -> Plan:
    cells = tuple(CellPlan(setting=replace(SETTING, rtt_s=rtt_s), systems=systems) for rtt_s in rtts_s)
    return Plan(cells=cells, runs=2, questions=("a", "b"))


def run(stage: Any, plan: Plan, folder: Path) -> list[Cell]:
    configs: dict[Models, Config] = {
        "configured": Config().with_names(),
        "half": Config.load(None, ["device.model=half"]),
    }
    predictors: dict[Models, Any] = dict.fromkeys(configs, stage)
    return Bench(stage, configs, plan, folder, predictors, lambda line: None, MIRROR).run()


def test_runs_go_through_all_systems_in_turn(stage: Stage, tmp_path: Path) -> None:
    (cell,) = run(stage, plan(0.1), tmp_path)
    asked = [each[1:] for each in stage.done if isinstance(each, tuple) and each[0] == 0.1 and each[1] >= 0]
    assert asked == [
        (number, system, question)
        for number in range(2)
        for system in ("CRCG/device", "Tandem/mirror")
        for question in range(2)
    ]
    assert {each.run for each in cell.records} == {0, 1}, "what warms up is not in it"
    assert "predict" not in stage.done[stage.done.index(("launch", 0.06, "bundled")) :], "it comes before"
    assert {each.token_s for each in cell.predictions.values()} == {0.07}
    stage.done = []
    (less,) = run(stage, plan(0.1, systems=(BY_NAME["DRCG/KV"],)), tmp_path)
    assert less.plan["systems"] == ["DRCG/KV"], "another plan is measured"
    assert "prepare" in stage.done, "where caches are sent"


def test_one_cluster_for_the_cells_that_share_it(stage: Stage, tmp_path: Path) -> None:
    two = plan(0.0, 0.1)
    others = (replace(SETTING, floors_s=None), replace(SETTING, models="half"))
    more = (CellPlan(setting=each, systems=SYSTEMS) for each in others)
    run(stage, replace(two, cells=(*two.cells, *more)), tmp_path)
    launched = [each[1:] for each in stage.done if each[0] == "launch"]
    assert launched == [(0.06, "bundled"), (0.0, "bundled"), (0.06, "half")]


def test_deployments_are_measured_in_turns_and_predicted_once(stage: Stage, tmp_path: Path) -> None:
    both = in_turns(plan(0.0, 0.1, 0.3).cells, ["ray", "join"])
    cells = run(stage, replace(plan(), cells=both), tmp_path)
    order = [each[0] for each in stage.done if each[0] in ("launch", "join")]
    assert order == ["launch", "join", "launch", "join"]
    assert [(cell.setting.rtt_s, cell.setting.deployment) for cell in cells] == [
        (0.0, "ray"),
        (0.0, "join"),
        (0.1, "join"),
        (0.1, "ray"),
        (0.3, "ray"),
        (0.3, "join"),
    ]
    assert stage.done.count("predict") == 3 * len(SYSTEMS)


def test_an_interrupted_benchmark_goes_on(stage: Stage, tmp_path: Path) -> None:
    stage.fails_at = (0.1, 1)
    with pytest.raises(KeyboardInterrupt):
        run(stage, plan(0.0, 0.1), tmp_path)
    assert [cell.setting.rtt_s for cell in read_cells(tmp_path / "cells.jsonl")] == [0.0]
    assert not (tmp_path / "link.pcap").exists()
    stage.fails_at, stage.done = None, []
    found = run(stage, plan(0.0, 0.1), tmp_path)
    assert [cell.setting.rtt_s for cell in found] == [0.0, 0.1]
    asked = {
        each[0] for each in stage.done if isinstance(each, tuple) and each[0] != "launch" and each[1] >= 0
    }
    assert asked == {0.1}
    stage.done = []
    assert run(stage, plan(0.0, 0.1), tmp_path) == found
    assert stage.done == [], "nothing is left to do"


def test_bytes_go_to_the_question_that_they_were_sent_for(stage: Stage, tmp_path: Path) -> None:
    (cell,) = run(stage, plan(0.0), tmp_path)
    for each in cell.records:  # from at_s to at_s + 0.6, a packet every quarter of a second
        assert each.wire_bytes["device"] == {"data": 300, "ray": 0, "other": 0}
    assert cell.idle_bytes_per_s["cloud"] == pytest.approx(2 * cell.idle_bytes_per_s["device"])
    assert not (tmp_path / "link.pcap").exists()
