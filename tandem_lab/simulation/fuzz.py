"""Deterministic fault testing: from one integer a query, links, faults, a run under a virtual clock, and a verdict.

The run is the protocol's own classes (`virtual`), what must hold is in `watched`, what goes wrong in `scenario`. A
failure names the seed that repeats it.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf

from tandem.aggregation.rules import LOTTERY
from tandem.topology import Party
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.hostile import CASES, play_hostile
from tandem_lab.simulation.oracle import has_oracle
from tandem_lab.simulation.scenario import (
    Scenario,
    by_lottery,
    expected_answer,
    make_chain_scenario,
    make_scenario,
)
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import InvariantError, VirtualRun
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import CODEC

LIMIT_S = 300.0
"""Virtual time after which a run counts as hung: all that is planted is over within a minute."""
TAIL = 60
"""Events in the report of a failed run."""
CHUNK = 25
"""Runs that a process gets at a time."""


class FuzzFailure(Exception):
    """A run broke an invariant, or raised. It can be repeated by its seed."""

    def __init__(self, seed: int, what: str, trace: list[str]) -> None:
        super().__init__(seed, what, trace)
        self.seed, self.what, self.trace = seed, what, trace

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.what}"


@dataclass(slots=True)
class Report:
    """What a number of runs came to."""

    num_runs: int = 0
    num_tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[FuzzFailure] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take the results of other runs in."""
        self.num_runs += other.num_runs
        self.num_tokens += other.num_tokens
        self.counts.update(other.counts)
        self.failures += other.failures


def scenario_of(seed: int, roles: str) -> Scenario:
    """roles: "dual", "solo", "speculative", or "federated-M" with M workers; "dual-lottery", "federated-M-lottery"."""
    if roles.endswith(LOTTERY):
        return by_lottery(scenario_of(seed, roles.removesuffix(f"-{LOTTERY}")))
    if roles == "dual":
        return make_scenario(seed)
    if roles == "solo":
        scenario = make_scenario(seed)
        alone = replace(scenario.spec, only=Party.DEVICE)
        return replace(scenario, spec=alone, faults=(), slips={}, is_rounding=False)
    return make_chain_scenario(seed, int(roles.partition("-")[2] or 0))


@lru_cache(maxsize=4096)
def expected(seed: int, roles: str = "dual") -> tuple[int, ...]:
    """What a dual run must give: the draft-free loop, or for Algorithm 1 the token-wise loop over a perfect link."""
    scenario = scenario_of(seed, roles)
    if has_oracle(scenario.spec):
        return tuple(expected_answer(scenario))
    spec = change_spec(scenario.spec, max_window=1, placement="device", on_peer_loss="wait", patience_s=inf)
    models = scenario.make_models(is_rounding=False)
    run = VirtualRun(spec, models, CODEC, finished=scenario.check_stop, seed=seed)
    return tuple(run.run(LIMIT_S).tokens[Party.DEVICE])


def play(
    seed: int,
    trace: EventLog | None = None,
    *,
    roles: str = "dual",
    run_class: type[WatchedRun] = WatchedRun,
) -> Report:
    """One run; FuzzFailure if it breaks an invariant or raises. trace: gets its events, by default the last TAIL.

    roles: as for `scenario_of`, or one of `hostile.CASES`.
    """
    trace = trace or EventLog(TAIL)
    try:
        if roles in CASES:
            num_tokens, counts = play_hostile(roles, seed, trace)
            return Report(num_runs=1, num_tokens=num_tokens, counts=counts)
        tokens = expected(seed, roles) if roles.startswith("dual") else None
        run = run_class(scenario_of(seed, roles), trace)
        run.run(LIMIT_S)
        run.check_end(tokens)
    except Exception as error:
        what = str(error) if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"
        raise FuzzFailure(seed, what, trace.lines()) from error
    return _report(run)


def _report(run: WatchedRun) -> Report:
    assert run.outcome.done is not None
    counts, statistics = run.counts.copy(), run.outcome.done.statistics
    for wire in run.faulty_wires.values():
        counts.update(wire.counts)
    counts["divergences healed"] += statistics.num_divergences
    counts["Resyncs"] += statistics.num_resyncs
    counts["queries with race lists"] += run.spec.rules.has_race_lists
    counts["longer lists"] += statistics.num_list_requests
    counts["frames resent"] += statistics.num_resent_frames
    counts["late votes"] += statistics.num_late_votes
    counts["degraded answers"] += statistics.degraded_from is not None
    return Report(num_runs=1, num_tokens=len(run.committed), counts=counts)


# ---- many runs -------------------------------------------------------------------------------------------------


def play_all(seeds: range, roles: str = "dual") -> Report:
    """Some runs, one after the other; those that failed are in the report."""
    report = Report()
    for seed in seeds:
        try:
            report.add(play(seed, roles=roles))
        except FuzzFailure as failure:
            report.add(Report(num_runs=1, failures=[failure]))
    return report


def fuzz(
    first: int,
    num_runs: int,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    max_failures: int = 1,
    roles: str = "dual",
) -> Report:
    """Runs of the seeds from `first` on, in `jobs` processes, until so many failed. progress: gets (done, total)."""
    seeds = range(first, first + num_runs)
    report = Report()
    for part in _parts(seeds, jobs, roles):
        report.add(part)
        progress(report.num_runs, num_runs)
        if len(report.failures) >= max_failures:
            break
    report.failures.sort(key=lambda failure: failure.seed)
    return report


def _parts(seeds: range, jobs: int, roles: str) -> Iterator[Report]:
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from (play_all(chunk, roles) for chunk in chunks)
        return
    # A fresh interpreter for each process: whoever calls may have threads.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = iter(chunks)
        running: set[Future[Report]] = set()
        try:
            while True:
                running |= {
                    pool.submit(play_all, chunk, roles) for chunk in islice(waiting, 2 * jobs - len(running))
                }
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(cancel_futures=True)
