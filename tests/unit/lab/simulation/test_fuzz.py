"""Random runs with faults: every invariant holds after every event (`tandem_lab.simulation.watched`).

That the property can fail is shown in `test_mutants`. More runs: `tandem lab fuzz --runs 100000`.
"""

from __future__ import annotations

import pytest

from tandem_lab.baselines.random_placement import RANDOM
from tandem_lab.simulation import fuzz as fuzzing
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.fuzz import (
    FuzzFailure,
    expected,
    fuzz,
    play,
)
from tandem_lab.simulation.scenario import MIN_TOKENS, make_scenario
from tests.unit.lab.simulation.test_mutants import no_resend

NUM_RUNS = (
    300,
    pytest.param(2000, marks=pytest.mark.nightly("two thousand runs")),
    pytest.param(100_000, marks=pytest.mark.weekly("as many as the README's table states")),
)
JOBS = 2
FAULTS = (
    "dropped",
    "duplicated",
    "held",
    "reordered",
    "stalls",
    "crashes",
    "queue crashes",
    "slips",
    "losses",
)


@pytest.mark.parametrize("num_runs", NUM_RUNS)
def test_runs_with_faults(num_runs: int) -> None:
    report = fuzz(0, num_runs, JOBS, max_failures=5)
    assert not report.failures, "\n".join(map(str, report.failures))
    assert report.num_runs == num_runs
    assert report.num_tokens >= MIN_TOKENS * num_runs
    for name in (*FAULTS, "divergences healed", "Resyncs", "frames resent", "late votes", "degraded answers"):
        assert report.counts[name] > 10, name


def test_each_run_has_a_fault_and_enough_tokens() -> None:
    for seed in range(40):
        report = play(seed)
        assert report.num_tokens >= MIN_TOKENS
        assert any(report.counts[name] for name in FAULTS), seed


def test_a_seed_gives_the_same_run() -> None:
    first, second = EventLog(None), EventLog(None)
    assert play(5, first) == play(5, second)
    assert first.lines() == second.lines()


def test_all_kinds_of_queries_occur() -> None:
    specs = [make_scenario(seed).spec for seed in range(200)]
    assert {spec.decoding.placement for spec in specs} == {"device", "cloud", "greedy", "mirror", RANDOM}
    assert {spec.decoding.draft_rule for spec in specs} == {"coupled", "algorithm1"}
    assert {spec.on_peer_loss for spec in specs} == {"wait", "continue"}
    lengths = {len(expected(seed)) for seed in range(60)}
    assert min(lengths) > MIN_TOKENS - 1
    assert len(lengths) > 4  # end-of-sequence and stop patterns too


@pytest.fixture
def failing_seed(monkeypatch: pytest.MonkeyPatch) -> int:
    """A seed that fails while a defect is planted."""
    for seed in range(4):
        expected(seed)
    no_resend(monkeypatch)
    return fuzz(0, 4).failures[0].seed


def test_a_failure_names_its_seed_and_is_repeated_by_it(failing_seed: int) -> None:
    with pytest.raises(FuzzFailure, match=f"seed {failing_seed}: it did not end") as found:
        play(failing_seed)
    assert len(found.value.trace) == fuzzing.TAIL
