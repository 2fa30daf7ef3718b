"""`tandem lab bench`: options become a plan, mistakes become one sentence. Nothing is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.config.schema import Config
from tandem_lab.bench.dual import LATENCY, full_cells
from tandem_lab.bench.plan import Plan
from tandem_lab.bench.runner import experiments_of
from tandem_lab.bench.suite import Suite
from tandem_lab.bench.systems import FEDERATED, SPECULATIVE
from tandem_lab.cli import bench
from tandem_lab.netlab import tools

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
    monkeypatch.setattr("tandem_lab.netlab.packets.find_spec", lambda name: name)
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


def test_stragglers(plan_of: PlanOf) -> None:
    plan, _ = plan_of(
        *("lab", "bench", "federated", "--rtt", "100ms", "--workers", "3", "--slow", "1", "4"),
        *("--systems", "token-wise", "pipelined"),
    )
    assert [each.setting.slow for each in plan.cells] == [1.0, 4.0]
    times_s = experiments_of(plan.cells[1].setting).min_decode_time_s
    assert dict(times_s) == {"server": 0.015, "worker-1": 0.027, "worker-2": 0.027, "worker-3": 4 * 0.027}
    assert len(plan.clusters()) == 2, "times are set when a cluster starts"


@pytest.mark.parametrize(
    ("suite", "num_cells", "num_clusters", "systems"),
    [("speculative", 4 * 4 * 3, 1, SPECULATIVE), ("federated", 4 * 2, 2, FEDERATED)],
)
def test_the_full_grids_of_the_other_suites(
    plan_of: PlanOf, suite: str, num_cells: int, num_clusters: int, systems: object
) -> None:
    plan, _ = plan_of("lab", "bench", suite)
    assert len(plan.cells) == len({each.setting for each in plan.cells}) == num_cells
    assert len(plan.clusters()) == num_clusters
    assert plan.cells[-1].systems == systems
    smoke, folder = plan_of("lab", "bench", suite, "--smoke", "--runs", "9")
    assert (smoke.runs, len(smoke.questions), len(smoke.cells)) == (1, 1, 1)
    assert folder == Path("bench", suite)
    weights = bench.SUITES[suite].configure(Config()).weights
    assert (weights.question, weights.evidence) == (0, 0)
