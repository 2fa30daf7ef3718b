"""Random runs with faults: every invariant holds after every event (`tandem_lab.simulation.watched`).

That the property can fail is shown in `test_mutants`. More runs: `tandem lab fuzz --runs 100000`.
"""

from __future__ import annotations

import pytest

from tandem_lab.baselines.random_placement import RANDOM
from tandem_lab.simulation import fuzz as fuzzing
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.fuzz import FuzzFailure, expected, fuzz, play
from tandem_lab.simulation.scenario import MIN_TOKENS, make_scenario
from tests.unit.lab.simulation.test_mutants import MUTANTS

NUM_RUNS = (
    225,
    pytest.param(2000, marks=pytest.mark.nightly("two thousand runs")),
    pytest.param(100_000, marks=pytest.mark.weekly("as many as the README's table states")),
)
FAULTS = (
    "dropped", "duplicated", "held", "reordered", "stalls", "crashes", "queue crashes", "slips", "losses",
    "lost within a site",
)  # fmt: skip
CONSEQUENCES = (
    "divergences healed", "Resyncs", "frames resent", "late votes", "degraded answers", "longer lists",
)  # fmt: skip


@pytest.mark.parametrize("num_runs", NUM_RUNS)
def test_runs_with_faults(num_runs: int) -> None:
    report = fuzz(0, num_runs, jobs=2, max_failures=5)
    assert not report.failures, "\n".join(map(str, report.failures))
    assert report.num_runs == num_runs
    assert report.num_tokens >= MIN_TOKENS * num_runs
    for name in FAULTS + CONSEQUENCES:
        assert report.counts[name] > 10, name


def test_a_seed_gives_the_same_run() -> None:
    first, second = EventLog(None), EventLog(None)
    report = play(5, first)
    assert report == play(5, second)
    assert first.lines() == second.lines()
    assert any(report.counts[name] for name in FAULTS)


def test_all_kinds_of_queries_occur() -> None:
    specs = [make_scenario(seed).spec for seed in range(200)]
    assert {spec.decoding.placement for spec in specs} == {"device", "cloud", "greedy", "mirror", RANDOM}
    assert {spec.decoding.draft_rule for spec in specs} == {"coupled", "algorithm1"}
    assert {spec.on_peer_loss for spec in specs} == {"wait", "continue"}
    lengths = {len(expected(seed)) for seed in range(60)}
    assert min(lengths) > MIN_TOKENS - 1
    assert len(lengths) > 4  # end-of-sequence and stop patterns too


def test_a_failure_names_its_seed_and_is_repeated_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        expected(seed)
    MUTANTS["no_resend"].mutate(monkeypatch)
    seed = fuzz(0, 4).failures[0].seed
    with pytest.raises(FuzzFailure, match=f"seed {seed}: it did not end") as found:
        play(seed)
    assert len(found.value.trace) == fuzzing.TAIL
