"""Deterministic fault testing: from one integer a query, a link, faults, a run under a virtual clock, and a verdict.

The run is the protocol's own classes (`virtual`), what must hold is in `invariants`, what goes wrong in `faults`.
A failure names the seed that repeats it. Knows nothing of terminals.
"""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from tandem.events import TokenEvent
from tandem.modes.spec import SessionSpec
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.chain import play_chain
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.faults import Fault, FaultyWire, FrameFault, plan_faults, plan_frames, plan_link
from tandem_lab.simulation.hostile import CASES, play_hostile
from tandem_lab.simulation.invariants import InvariantError, WatchedRun
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import answer, has_oracle
from tandem_lab.simulation.specs import change_spec, make_spec, vary_layouts
from tandem_lab.simulation.virtual import VirtualRun
from tandem_lab.simulation.world import CODEC, EOS, NEVER, VOCAB, World, codec_for, number, stop_rule

MIN_TOKENS = 16
"""Committed tokens of any run, at least."""
LIMIT_S = 300.0
"""Virtual time after which a run counts as hung: all that is planted is over within a minute."""
TAIL = 60
"""Events in the report of a failed run."""
RACE_LISTS = 0.4
"""Share of the queries with coupled drafts whose votes are race lists."""
CHUNK = 25
"""Runs that a process gets at a time."""


class FuzzFailure(Exception):
    """A run broke an invariant, or raised. It can be repeated by its seed."""

    def __init__(self, seed: int, what: str, trace: list[str]) -> None:
        super().__init__(seed, what, trace)
        self.seed, self.what, self.trace = seed, what, trace

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that is drawn from a seed."""

    seed: int
    spec: SessionSpec
    link: Link
    frames: dict[Party, dict[int, FrameFault]]  # by sender and number
    faults: tuple[Fault, ...]
    slips: dict[int, int]  # by step: how far the cloud's token is off
    is_rounding: bool  # a decoder that was restarted computes old laws a little otherwise
    first_end: int  # no end-of-sequence and no stop pattern up to so many tokens
    decode_s: dict[Party, float]  # mean of an exponential distribution
    hop_jitter_s: float  # messages within a side overtake each other
    hop_loss: float  # and get lost, with this probability


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


def make_scenario(seed: int) -> Scenario:
    """A query whose every dial is drawn from the seed, and at least one fault for it."""
    rng = random.Random(number("fuzz", seed))
    spec = vary_layouts(_with_race_lists(_make_spec(rng, seed), seed), seed)
    link = plan_link(rng)
    is_mirror = spec.decoding.placement == "mirror"
    steps = [rng.randrange(MIN_TOKENS) for _ in range(rng.choice([0, 1, 3, 6]))] if is_mirror else []
    faults = plan_faults(rng, spec.sampling.max_new_tokens, rng.choice([0, 1, 2, 4]))
    return Scenario(
        seed=seed,
        spec=spec,
        link=link,
        frames={party: plan_frames(rng, 4) for party in PARTIES},
        faults=faults,
        slips={step: _shift(rng) for step in steps},
        is_rounding=rng.random() < 0.5,
        first_end=rng.choice([NEVER, NEVER, MIN_TOKENS]),
        decode_s={party: rng.choice([0.003, 0.03, 0.03, 0.1]) for party in PARTIES},
        hop_jitter_s=rng.choice([0.0, 0.02, 0.1]),
        # Drawn apart, so that recorded seeds keep the rest of their scenario.
        hop_loss=random.Random(number("hop loss", seed)).choice([0.0, 0.0, 0.02]),
    )


def _shift(rng: random.Random) -> int:
    return rng.randrange(1, VOCAB)


def _make_spec(rng: random.Random, seed: int) -> SessionSpec:
    """Placement "mirror" needs coupled drafts: a query without them is placed greedily instead."""
    values: dict[str, Any] = dict(
        session=seed + 1,
        seed=seed,
        eos_token_ids=(EOS,),
        draft_rule=rng.choice(["coupled", "coupled", "algorithm1"]),
        temperature=rng.choice([0.0, 0.7, 1.0]),
        placement=rng.choice(["device", "cloud", "greedy", "random", "mirror", "mirror"]),
        max_new_tokens=rng.choice([MIN_TOKENS, MIN_TOKENS, 18, 24]),
        device_documents=rng.choice([0, 2, 2]),
        cloud_documents=rng.choice([0, 3, 3]),
        question_weight=rng.choice([0.0, 1.0, 1.0, 0.5]),
        evidence_weight=rng.choice([0.0, 1.0, 1.0]),
        evidence_memory=rng.choice([0.5, 1.0]),
        max_window=rng.randint(1, 16),
        on_peer_loss=rng.choice(["wait", "wait", "continue"]),
        peer_loss_margin_s=rng.choice([0.1, 1.0]),
        show_drafts=bool(seed % 2),
    )
    if (values["draft_rule"], values["placement"]) == ("algorithm1", "mirror"):
        values["placement"] = "greedy"
    return make_spec(**values)


def _with_race_lists(spec: SessionSpec, seed: int) -> SessionSpec:
    """A share of the queries with coupled drafts votes with short race lists. Drawn apart, too."""
    rng = random.Random(number("race lists", seed))
    if spec.decoding.draft_rule != "coupled" or rng.random() >= RACE_LISTS:
        return spec
    return replace(spec, race_depth=rng.choice([1, 2, 3]), vocab_size=VOCAB)


@lru_cache(maxsize=4096)
def expected(seed: int) -> tuple[int, ...]:
    """What every run must give: the draft-free loop, or for Algorithm 1 the token-wise loop over a perfect link."""
    scenario = make_scenario(seed)
    if has_oracle(scenario.spec):
        return answer(scenario.spec, _finished(scenario), first_end=scenario.first_end)
    spec = change_spec(scenario.spec, max_window=1, placement="device", on_peer_loss="wait")
    run = VirtualRun(
        spec, _worlds(scenario, is_rounding=False), CODEC, finished=_finished(scenario), seed=seed
    )
    return tuple(run.run(LIMIT_S).tokens[Party.DEVICE])


def play(seed: int, *, tail: int | None = TAIL, roles: str = "dual") -> Report:
    """One run; FuzzFailure if it breaks an invariant or raises. tail: events kept for its trace; None: all.

    roles: "dual", "solo", "speculative", "federated-M" with M workers, or one of `hostile.CASES`.
    """
    return play_traced(seed, EventLog(tail), roles)


def play_traced(seed: int, trace: EventLog, roles: str = "dual") -> Report:
    """The same with the events in `trace`, for a reader who wants those of a good run too."""
    if roles in CASES:
        return _play_guarded(seed, trace, lambda: play_hostile(roles, seed, trace))
    if roles not in ("dual", "solo"):
        num_workers = int(roles.partition("-")[2] or 0)
        return _play_guarded(seed, trace, lambda: play_chain(seed, num_workers, trace))
    scenario = make_scenario(seed)
    if roles == "solo":
        return _play_solo(scenario, trace)
    tokens = expected(seed)
    run = make_run(scenario, trace)
    try:
        outcome = run.run(LIMIT_S)
        run.check_end(outcome, tokens)
    except InvariantError as error:
        raise FuzzFailure(seed, str(error), trace.lines()) from error
    except Exception as error:
        raise FuzzFailure(seed, f"{type(error).__name__}: {error}", trace.lines()) from error
    assert outcome.done is not None
    return _report(run, outcome.done.statistics)


def _play_guarded(seed: int, trace: EventLog, run: Callable[[], tuple[int, Counter[str]]]) -> Report:
    """One run that returns the number of tokens, and what happened."""
    try:
        num_tokens, counts = run()
    except Exception as error:
        raise FuzzFailure(seed, f"{type(error).__name__}: {error}", trace.lines()) from error
    return Report(num_runs=1, num_tokens=num_tokens, counts=counts)


def _play_solo(scenario: Scenario, trace: EventLog) -> Report:
    """One run of a party that answers alone, with losses within its site."""
    spec = replace(scenario.spec, only=Party.DEVICE)
    changed = replace(scenario, spec=spec, faults=(), slips={})
    run = make_run(changed, trace)
    outcome = run.run(LIMIT_S)
    told = [event.token for event in outcome.events if isinstance(event, TokenEvent)]
    if outcome.done is None or outcome.done.reason not in ("eos", "stop", "length"):
        raise FuzzFailure(scenario.seed, f"it did not end: {len(told)} tokens", trace.lines())
    if has_oracle(spec) and tuple(told) != answer(spec, _finished(changed), first_end=scenario.first_end):
        raise FuzzFailure(scenario.seed, "the answer differs from the draft-free one", trace.lines())
    return Report(num_runs=1, num_tokens=len(told), counts=run.counts)


def make_run(scenario: Scenario, trace: EventLog) -> WatchedRun:
    """The run of a scenario, ready to start."""
    run = WatchedRun(
        scenario.spec,
        _worlds(scenario, is_rounding=scenario.is_rounding),
        codec_for(scenario.spec),
        finished=_finished(scenario),
        link=scenario.link,
        decode_s=lambda party, rng: rng.expovariate(1 / scenario.decode_s[party]),
        seed=scenario.seed,
    )
    run.watch(
        wires={party: FaultyWire(scenario.link, scenario.frames[party]) for party in PARTIES},
        faults=scenario.faults,
        slips=scenario.slips,
        hop_jitter_s=scenario.hop_jitter_s,
        hop_loss=scenario.hop_loss,
        trace=trace,
    )
    return run


def _worlds(scenario: Scenario, *, is_rounding: bool) -> dict[Party, Any]:
    return {
        party: World(
            scenario.seed,
            party,
            first_end=scenario.first_end,
            is_rounding=is_rounding,
            codec=codec_for(scenario.spec),
        )
        for party in PARTIES
    }


def _finished(scenario: Scenario) -> Any:
    return stop_rule(scenario.spec.sampling.max_new_tokens, scenario.first_end)


def _report(run: WatchedRun, statistics: Any) -> Report:
    counts = run.counts.copy()
    for wire in run.faulty_wires.values():
        counts.update(wire.counts)
    counts["divergences healed"] += statistics.num_divergences
    counts["Resyncs"] += statistics.num_resyncs
    counts["queries with race lists"] += run.spec.rules.has_race_lists
    counts["longer lists"] += statistics.num_list_requests
    counts["frames resent"] += statistics.num_resent_frames
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
