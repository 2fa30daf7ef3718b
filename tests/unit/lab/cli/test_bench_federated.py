"""`tandem lab bench federated`: options become a plan. Nothing is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.config.schema import Config
from tandem_lab.cli import bench_federated as bench
from tandem_lab.federated.systems import SYSTEMS
from tandem_lab.latency.plan import Plan
from tandem_lab.latency.runner import experiments_of

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")


def plan_of(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> tuple[Plan, Config]:
    """The plan and settings of a command line, which is not carried out."""
    plans: list[tuple[Plan, Config]] = []

    def measure(lab: Any, config: Config, plan: Plan, folder: Path, log: Any) -> int:
        plans.append((plan, config))
        return 0

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["lab", "bench", "federated", *words, "--out", str(folder), "--within", "lab"]) == 0
    return plans.pop()


def test_without_options_the_full_grid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan, config = plan_of(monkeypatch, tmp_path)
    settings = [each.setting for each in plan.cells]
    assert len(settings) == len(set(settings)) == 4 * 2
    assert {each.rtt_s for each in settings} == {0.05, 0.1, 0.2, 0.3}
    assert {each.workers for each in settings} == {
        ("worker-1", "worker-2"),
        ("worker-1", "worker-2", "worker-3", "worker-4"),
    }
    assert plan.cells[0].systems == SYSTEMS
    assert len(plan.clusters()) == 2
    assert (config.weights.question, config.weights.evidence) == (0, 0)


def test_options_name_a_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--rtt", "100ms", "--workers", "3", "--slow", "1", "4", "--systems", "token-wise", "pipelined"]
    plan, _ = plan_of(monkeypatch, tmp_path, *words, "--questions", "1")
    assert [each.setting.slow for each in plan.cells] == [1.0, 4.0]
    assert [system.name for system in plan.cells[0].systems] == ["token-wise", "pipelined"]
    times_s = experiments_of(plan.cells[1].setting).min_decode_time_s
    assert dict(times_s) == {"server": 0.015, "worker-1": 0.027, "worker-2": 0.027, "worker-3": 4 * 0.027}
    assert len(plan.clusters()) == 2, "times are set when a cluster starts"


def test_smoke_is_one_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan, _ = plan_of(monkeypatch, tmp_path, "--smoke")
    (only,) = plan.cells
    assert (only.setting.rtt_s, only.setting.num_workers, plan.runs, len(plan.questions)) == (0.1, 2, 1, 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--systems", "tokenwise"],
            "A system is one of 5 (docs/how-to/federated.md), but 'tokenwise' is none",
        ),
        (["--workers", "1"], "must be 2 to 63 workers (got '1')"),
        (["--slow", "fast"], "--slow must be a number from 1 to 100, such as 4 (got 'fast')."),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["lab", "bench", "federated", *words, "--out", str(tmp_path)]) != 0
    assert sentence in capsys.readouterr().err


def test_clusters_have_weights_that_stay() -> None:
    weights = bench.config_for(Config.load(None, ["weights.workers=documents"])).weights
    assert (weights.workers, weights.question, weights.evidence) == ("fixed", 0, 0)
