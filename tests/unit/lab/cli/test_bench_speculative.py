"""`tandem lab bench speculative`: options become a plan. Nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.cli.output import StageLog
from tandem.config.schema import Config
from tandem_lab.cli import bench_speculative as bench
from tandem_lab.latency.plan import Plan
from tandem_lab.netlab import tools
from tandem_lab.speculative.systems import SYSTEMS
from tests.unit.lab.speculative.cells import cell

PlanOf = Callable[..., tuple[Plan, Config, Path]]

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlanOf:
    """The plan, settings and folder of a command line, which is not carried out."""
    plans: list[tuple[Plan, Config, Path]] = []

    def measure(lab: Any, config: Config, plan: Plan, folder: Path, log: Any) -> int:
        plans.append((plan, config, folder))
        return 0

    def plan_of(*words: str) -> tuple[Plan, Config, Path]:
        words = ("lab", "bench", "speculative", *words)
        out = () if "--out" in words else ("--out", str(tmp_path))
        assert main([*words, *out, "--within", "lab"]) == 0
        return plans.pop()

    monkeypatch.setattr(bench, "measure", measure)
    return plan_of


def test_without_options_the_full_grid(plan_of: PlanOf) -> None:
    plan, config, _ = plan_of()
    settings = [each.setting for each in plan.cells]
    assert len(settings) == len(set(settings)) == 4 * 4 * 3
    assert {each.rtt_s for each in settings} == {0.0, 0.05, 0.1, 0.3}
    assert {each.bits_per_s for each in settings} == {1e4, 1e5, 1e6, None}
    assert {each.temperature for each in settings} == {0.0, 0.6, 1.0}
    assert plan.cells[-1].systems == SYSTEMS
    assert not [s for s in plan.cells[0].systems if s.name.endswith("rejection")], "at temperature 0"
    assert len(plan.clusters()) == 1
    assert {each.models for each in settings} == {"close"}
    assert config.codec.name == "tandem.papers.sqs:KSqs"
    assert (config.weights.question, config.weights.evidence) == (0, 0)


def test_options_name_a_part(plan_of: PlanOf) -> None:
    words = [
        "--rtt",
        "100ms",
        "--rate",
        "10kbit",
        "unlimited",
        "--temperature",
        "1",
        "--models",
        "configured",
    ]
    words += [
        "--systems",
        "streamed",
        "pipelined",
        "--min-decode-time",
        "none",
        "--runs",
        "2",
        "--questions",
        "1",
    ]
    plan, config, _ = plan_of(*words, "--set", 'codec.name="tandem.papers.qs:Lattice"')
    assert [(each.setting.bits_per_s, each.setting.floors_s) for each in plan.cells] == [
        (1e4, None),
        (None, None),
    ]
    assert [system.name for system in plan.cells[0].systems] == ["streamed", "pipelined"]
    assert (plan.runs, len(plan.questions)) == (2, 1)
    assert config.codec.name == "tandem.papers.qs:Lattice"
    assert {each.setting.models for each in plan.cells} == {"configured"}


def test_deployments_take_turns_on_each_link(plan_of: PlanOf) -> None:
    words = [
        "--rtt",
        "0",
        "100ms",
        "--rate",
        "unlimited",
        "--temperature",
        "1",
        "--systems",
        "asked",
        "device",
    ]
    plan, _, _ = plan_of(*words, "--deployment", "ray", "join")
    found = [(cell.setting.rtt_s, cell.setting.deployment, len(cell.systems)) for cell in plan.cells]
    assert found == [(0.0, "ray", 2), (0.0, "join", 2), (0.1, "join", 2), (0.1, "ray", 2)]


def test_smoke_is_one_cell(plan_of: PlanOf) -> None:
    plan, _, _ = plan_of("--smoke")
    (only,) = plan.cells
    assert (only.setting.rtt_s, only.setting.bits_per_s, only.setting.temperature) == (0.1, None, 1.0)
    assert (plan.runs, len(plan.questions), only.systems) == (1, 1, SYSTEMS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--systems", "pipelines"],
            "A system is one of 14 (docs/explanation/speculative.md), but 'pipelines' is none",
        ),
        (["--rate", "fast"], "A rate is a number with its unit"),
        (["--models", "half"], "must be close or configured (got 'half')"),
        (["--temperature", "warm"], "A temperature must be a number of at least 0 (got 'warm')"),
        (["--min-decode-time", "1"], "--min-decode-time must be the device's and the cloud's in seconds"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["lab", "bench", "speculative", *words, "--out", str(tmp_path)]) != 0
    assert sentence in capsys.readouterr().err


def test_the_inner_process_gets_the_same_plan(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []

    def inside(lab: Any, arguments: list[str]) -> int:
        started.append(arguments)
        return 0

    monkeypatch.setattr("tandem_lab.netlab.inside.inside", inside)
    monkeypatch.setattr("tandem_lab.netlab.pcap.find_spec", lambda name: name)
    monkeypatch.setattr(tools, "require", lambda: None)
    monkeypatch.setattr(tools, "which", lambda name: name)
    words = ["--rate", "10kbit", "--temperature", "1", "--out", str(tmp_path)]
    assert main(["lab", "bench", "speculative", *words]) == 0
    ((*inner, within, name),) = started
    assert (within, name[:6]) == ("--within", "bench-")
    assert plan_of(*inner[3:]) == plan_of(*words)


def test_the_report_is_written(tmp_path: Path) -> None:
    config = bench.config_for(Config())
    folder = tmp_path / "out"
    folder.mkdir()
    assert bench.write_report([cell()], config, folder, StageLog(is_quiet=True)) == 0
    results = json.loads((folder / "results.json").read_text("utf-8"))
    assert results["settings"]["codec"]["name"] == "tandem.papers.sqs:KSqs"
    assert {path.name for path in folder.iterdir()} == {*bench.NAMES} - {"cells.jsonl"}
