"""`tandem lab bench`: options become a plan, mistakes become one sentence. Nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.cli.output import StageLog
from tandem.config.schema import Config
from tandem.errors import install_line
from tandem_lab.bench.dual import LATENCY, full_cells
from tandem_lab.bench.plan import Plan
from tandem_lab.bench.runner import experiments_of
from tandem_lab.bench.suite import Axes, Suite
from tandem_lab.bench.systems import FEDERATED, SPECULATIVE
from tandem_lab.cli import bench
from tandem_lab.errors import NetLabError
from tandem_lab.netlab import tools
from tests.unit.lab.bench.cells import cell

PlanOf = Callable[..., tuple[Plan, Path]]

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of inner processes, which are not started."""
    found: list[list[str]] = []

    def inside(lab: Any, arguments: list[str]) -> int:
        found.append(arguments)
        return 0

    monkeypatch.setattr("tandem_lab.netlab.inside.inside", inside)
    monkeypatch.setattr("tandem_lab.netlab.pcap.find_spec", lambda name: name)
    monkeypatch.setattr(tools, "require", lambda: None)
    monkeypatch.setattr(tools, "which", lambda name: name)
    return found


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlanOf:
    """The plan and folder of a command line, which is not carried out."""
    plans: list[tuple[Plan, Path]] = []

    def measure(suite: Suite, lab: Any, config: Config, plan: Plan, folder: Path, log: Any) -> int:
        plans.append((plan, folder))
        return 0

    def plan_of(*words: str) -> tuple[Plan, Path]:
        assert main([*words, "--within", "lab"]) == 0
        return plans.pop()

    monkeypatch.setattr(bench, "measure", measure)
    return plan_of


def test_without_options_the_full_grid(plan_of: PlanOf) -> None:
    plan, _ = plan_of("lab", "bench", "latency")
    assert plan.cells == full_cells(LATENCY)
    assert (plan.runs, len(plan.questions)) == (5, 3)


def test_options_name_a_part(plan_of: PlanOf) -> None:
    plan, _ = plan_of(
        *("lab", "bench", "latency"),
        *("--rtt", "0", "300ms", "--temperature", "1", "--systems", "Tandem/mirror", "DRDG/TW"),
        *("--min-decode-time", "none", "0.1,0.02", "--runs", "2", "--questions", "1"),
    )
    assert [(cell.setting.floors_s, cell.setting.rtt_s) for cell in plan.cells] == [
        (None, 0.0),
        (None, 0.3),
        ((0.1, 0.02), 0.0),
        ((0.1, 0.02), 0.3),
    ]
    assert [system.name for system in plan.cells[0].systems] == ["DRDG/TW", "Tandem/mirror"]
    assert (plan.runs, len(plan.questions)) == (2, 1)


def test_half_of_the_drafts_accepted_is_a_part(plan_of: PlanOf) -> None:
    plan, _ = plan_of("lab", "bench", "latency", "--models", "half", "--temperature", "1")
    assert [(cell.setting.models, cell.setting.rtt_s) for cell in plan.cells] == [
        ("half", 0.0),
        ("half", 0.1),
        ("half", 0.3),
    ]
    names = ["CRCG/device", "Tandem/mirror", "Tandem/device", "Tandem/greedy"]
    assert [system.name for system in plan.cells[0].systems] == names
    one, _ = plan_of(
        "lab", "bench", "latency", "--models", "half", "--rtt", "300ms", "--systems", "Tandem/mirror"
    )
    assert {(cell.setting.rtt_s, *(s.name for s in cell.systems)) for cell in one.cells} == {
        (0.3, "Tandem/mirror")
    }


def test_deployments_take_turns_on_each_link(plan_of: PlanOf) -> None:
    plan, _ = plan_of(
        *("lab", "bench", "latency", "--deployment", "ray", "join", "--rtt", "0", "300ms"),
        *("--temperature", "0", "--systems", "CRCG/device", "CRCG/cloud", "Tandem/mirror"),
    )
    found = [(cell.setting.rtt_s, cell.setting.deployment, len(cell.systems)) for cell in plan.cells]
    assert found == [(0.0, "ray", 3), (0.0, "join", 2), (0.3, "join", 2), (0.3, "ray", 3)]
    alone, _ = plan_of("lab", "bench", "ttft", "--deployment", "join", "--smoke")
    assert [cell.setting.deployment for cell in alone.cells] == ["join"]


def test_what_was_measured_with_other_settings_is_not_taken() -> None:
    def settings_of(*changes: str) -> str:
        cells = LATENCY.cells(Axes(), (), is_smoke=True)
        config = Config.load(None, changes)
        return bench.make_plan(LATENCY, cells, config, runs=1, num_questions=1, is_smoke=True).settings

    assert settings_of() == settings_of() != settings_of("codec.parameters={p = 0.9}")


def test_each_benchmark_has_its_own_folder(plan_of: PlanOf) -> None:
    for name in ("latency", "ttft"):
        assert plan_of("lab", "bench", name)[1] == Path("bench", name)


def test_the_results_hold_the_settings(tmp_path: Path) -> None:
    config = Config.load(None, ["codec.parameters={p = 0.9}"])
    assert bench.write_report(LATENCY, [cell()], config, tmp_path, StageLog(is_quiet=True)) == 0
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["settings"]["codec"]["parameters"] == {
        "p": 0.9
    }


def test_smoke_is_one_question_at_one_round_trip(plan_of: PlanOf) -> None:
    plan, _ = plan_of("lab", "bench", "latency", "--smoke", "--runs", "9")
    assert (plan.runs, len(plan.questions), len(plan.cells)) == (1, 1, 1)
    assert plan.cells[0].setting.rtt_s == 0.1


def test_the_inner_process_gets_the_same_plan(
    started: list[list[str]], plan_of: PlanOf, tmp_path: Path
) -> None:
    words = ["lab", "bench", "ttft", "--rtt", "0", "100ms", "--systems", "DRDG/TW", "--runs", "2"]
    words += [
        "--out",
        str(tmp_path / "out"),
        "--set",
        "codec.parameters={p = 0.9}",
        "--set",
        "weights.memory=0.5",
    ]
    words += ["--min-decode-time", "0.1,0.02", "--deployment", "ray"]
    assert main(words) == 0
    ((*inner, within, name),) = started
    assert (within, name[:6]) == ("--within", "bench-")
    assert plan_of(*inner) == plan_of(*words)
    assert (tmp_path / "out").is_dir()


MISTAKES = {
    "latency": [
        (["--systems", "Tandem/miror"], "'Tandem/miror' is none; the nearest is 'Tandem/mirror'"),
        (["--rtt", "100"], "A duration is a number with its unit"),
        (["--rtt", "90s"], "A link's RTT is from 0 to 60 s"),
        (["--temperature", "warm"], "A temperature must be a number of at least 0 (got 'warm')"),
        (["--temperature", "nan"], "(got 'nan')"),
        (["--min-decode-time", "0.1"], "must be the device's and the cloud's in seconds, such as 0.06,0.025"),
        (["--min-decode-time=-1,0"], "(got '-1,0')"),
        (["--questions", "1000"], "but --questions asks for 1000; ask for fewer"),
        (["--deployment", "join", "--systems", "CRCG/cloud"], "can be measured over a join link"),
        (["--deployment", "inline"], "must be ray or join (got 'inline')"),
        (["--models", "halve"], "must be configured or half or close (got 'halve')"),
        (["--rate", "1mbit"], "--rate is for the suite speculative; remove it"),
        (["--set", "codec.nam=1"], "the nearest is 'codec.name'"),
    ],
    "speculative": [
        (["--models", "half"], "must be close or configured (got 'half')"),
        (["--workers", "3"], "--workers is for the suite federated; remove it"),
    ],
    "federated": [
        (["--temperature", "1"], "--temperature is for the suite latency or ttft or speculative"),
        (
            ["--systems", "tokenwise"],
            "A system is one of 5 (docs/how-to/federated.md), but 'tokenwise' is none",
        ),
        (["--workers", "1"], "must be 2 to 63 workers (got '1')"),
        (["--slow", "fast"], "--slow must be a number from 1 to 100, such as 4 (got 'fast')."),
    ],
    "latencies": [([], "must be latency or ttft or speculative or federated (got 'latencies')")],
}


@pytest.mark.parametrize(
    ("suite", "words", "sentence"), [(suite, *each) for suite, known in MISTAKES.items() for each in known]
)
def test_a_mistake_is_one_sentence(
    suite: str,
    words: list[str],
    sentence: str,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(["lab", "bench", suite, *words, "--out", str(tmp_path)]) != 0
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert started == []


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["lab", "bench", "latency", "--out", str(tmp_path / "file" / "out")]) == 1
    assert "--out needs a folder to write into" in capsys.readouterr().err


def test_without_dpkt_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tandem_lab.netlab.pcap.find_spec", lambda name: None)
    assert main(["lab", "bench", "latency", "--out", str(tmp_path)]) == 1
    assert f"needs dpkt, which is not installed; run `{install_line('lab')}`" in capsys.readouterr().err
    assert started == []


def test_without_root_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def require() -> None:
        raise NetLabError("A test network is built by root, but this is user 1000; use sudo.")

    monkeypatch.setattr(tools, "require", require)
    assert main(["lab", "bench", "latency", "--out", str(tmp_path)]) == 1
    assert "user 1000; use sudo" in capsys.readouterr().err
    assert started == []


# ---- The suite speculative ---------------------------------------------------------------------------------------


def test_the_full_grid_of_speculative_decoding(plan_of: PlanOf) -> None:
    plan, _ = plan_of("lab", "bench", "speculative")
    settings = [each.setting for each in plan.cells]
    assert len(settings) == len(set(settings)) == 4 * 4 * 3
    assert {each.rtt_s for each in settings} == {0.0, 0.05, 0.1, 0.3}
    assert {each.bits_per_s for each in settings} == {1e4, 1e5, 1e6, None}
    assert {each.temperature for each in settings} == {0.0, 0.6, 1.0}
    assert plan.cells[-1].systems == SPECULATIVE
    assert not [s for s in plan.cells[0].systems if s.name.endswith("rejection")], "at temperature 0"
    assert len(plan.clusters()) == 1
    assert {each.models for each in settings} == {"close"}
    config = bench.SUITES["speculative"].configure(Config())
    assert config.codec.name == "tandem.papers.sqs:KSqs"
    assert (config.weights.question, config.weights.evidence) == (0, 0)


def test_a_part_of_it(plan_of: PlanOf) -> None:
    plan, _ = plan_of(
        *(
            "lab",
            "bench",
            "speculative",
            "--rtt",
            "100ms",
            "--rate",
            "10kbit",
            "unlimited",
            "--temperature",
            "1",
        ),
        *("--models", "configured", "--systems", "streamed", "pipelined", "--min-decode-time", "none"),
    )
    found = [(each.setting.bits_per_s, each.setting.floors_s) for each in plan.cells]
    assert found == [(1e4, None), (None, None)]
    assert [system.name for system in plan.cells[0].systems] == ["streamed", "pipelined"]
    assert {each.setting.models for each in plan.cells} == {"configured"}
    own = Config.load(None, ["codec.name=tandem.papers.qs:Lattice"])
    assert bench.SUITES["speculative"].configure(own).codec == own.codec


def test_its_smoke_is_one_cell(plan_of: PlanOf) -> None:
    plan, _ = plan_of("lab", "bench", "speculative", "--smoke")
    (only,) = plan.cells
    assert (only.setting.rtt_s, only.setting.bits_per_s, only.setting.temperature) == (0.1, None, 1.0)
    assert (plan.runs, len(plan.questions), only.systems) == (1, 1, SPECULATIVE)


# ---- The suite federated -----------------------------------------------------------------------------------------


def test_the_full_grid_of_federated_decoding(plan_of: PlanOf) -> None:
    plan, _ = plan_of("lab", "bench", "federated")
    settings = [each.setting for each in plan.cells]
    assert len(settings) == len(set(settings)) == 4 * 2
    assert {each.rtt_s for each in settings} == {0.05, 0.1, 0.2, 0.3}
    assert {len(each.workers) for each in settings} == {2, 4}
    assert plan.cells[0].systems == FEDERATED
    assert len(plan.clusters()) == 2
    weights = bench.SUITES["federated"].configure(Config()).weights
    assert (weights.question, weights.evidence) == (0, 0)


def test_stragglers(plan_of: PlanOf) -> None:
    plan, _ = plan_of(
        *("lab", "bench", "federated", "--rtt", "100ms", "--workers", "3", "--slow", "1", "4"),
        *("--systems", "token-wise", "pipelined"),
    )
    assert [each.setting.slow for each in plan.cells] == [1.0, 4.0]
    times_s = experiments_of(plan.cells[1].setting).min_decode_time_s
    assert dict(times_s) == {"server": 0.015, "worker-1": 0.027, "worker-2": 0.027, "worker-3": 4 * 0.027}
    assert len(plan.clusters()) == 2, "times are set when a cluster starts"
