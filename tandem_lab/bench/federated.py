"""The suite `federated`: a server drafts and workers vote, beside the token-wise loop.

Predictions are the real models' acceptance in the simulated protocol. The draft-free loop gives the tokens that every
system must commit, and along them the server's model says at which steps its token is the same.
`tandem_lab.simulation.timed` plays such an answer with the times of the benchmark: the floors of a draft and a pass,
the link, and the parties' own work.

That work is measured apart from the cells that it predicts. Without a delay, token-wise and stop-and-wait answers are
measured first, on the same actors, cores and models. From their processor time come that of a draft, of a pass (a basis
and a part for each token), and of a frame. The server has one core and all workers the other, so a worker's time counts
once for each of them. What both kinds of answers take longer than their simulation, for wake-ups and calls, is split
into a time between two actors and one at the end of each pass, of which a round of stop-and-wait has five, and a
token-wise one has one. Nothing is taken from an answer with a delay, nor from a pipelined or adaptive one: a prediction
that knew what it predicts would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isfinite, nan
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.coupling import noise
from tandem.aggregation.race_lists import certify, race_list
from tandem.codecs.votes import encode_race_list
from tandem.config.schema import Config
from tandem.modes import SessionSpec
from tandem.topology import SERVER
from tandem_lab.bench import plots
from tandem_lab.bench.records import Cell, Prediction, Record, Setting
from tandem_lab.bench.suite import (
    FIRST,
    OFF,
    PACE,
    PREDICTED,
    WRONG,
    Axes,
    Check,
    Column,
    Predicts,
    Row,
    Suite,
    agreement,
    exactness,
    forwards,
    shown,
    told,
    value,
)
from tandem_lab.bench.systems import FEDERATED, System
from tandem_lab.numbers import ratio
from tandem_lab.quality.workers import LocalWorkers
from tandem_lab.simulation.timed import Times, Timing, Work, pace_s, play_timed

TOKEN_WISE, STOP_AND_WAIT, PIPELINED, *_ = FEDERATED
CALIBRATION: tuple[System, ...] = (TOKEN_WISE, STOP_AND_WAIT)
"""What is measured without a delay."""


# ---- What each system should take --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Path:
    """One answer of the workers, and how the server's model would have drafted along it."""

    tokens: tuple[int, ...]
    accepted: tuple[bool, ...]  # the server's token is the target
    vote_bytes: float  # of a vote's first race list, on average
    certified: float  # share of the steps that the first lists settle


class Predictor:
    """Predictions for a few questions."""

    def __init__(self, load: Callable[[], LocalWorkers], questions: Sequence[str]) -> None:
        """load: called once, at the first prediction."""
        self._load, self._questions = cache(load), questions
        self._paths: dict[tuple[float, int], list[Path]] = {}
        self._calibrations: dict[Setting, Calibration] = {}

    def calibrate(self, cell: Cell) -> str:
        """Use what answers without a delay took, for all cells that differ in the round trip alone; in words."""
        setting = cell.setting

        def play_s(system: System, times: Times) -> float:
            return _pace_s(
                [play_timed(system.options, times, path.accepted) for path in self._follow(setting)]
            )

        calibration = self._calibrations[setting] = calibrate(cell, play_s)
        simulated_s = play_s(STOP_AND_WAIT, calibration.times(setting))
        return describe(calibration, setting, token_s(cell.of(STOP_AND_WAIT.name)) / simulated_s - 1.0)

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        """The answer to each question; its number is its seed."""
        return tuple(path.tokens for path in self._follow(setting))

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system; nothing where decode times are the machine's own."""
        paths = self._follow(setting)
        if setting.floors_s is None:
            return Prediction(token_s=nan)
        timings, bare = (
            [play_timed(system.options, times, path.accepted) for path in paths]
            for times in self._times(setting)
        )
        num_tokens = sum(len(path.tokens) for path in paths)
        num_passes = {
            party: sum(timing.num_passes.get(party, 0) for timing in timings) / num_tokens
            for party in (SERVER, *setting.workers)
        }
        return Prediction(
            token_s=_pace_s(timings),
            acceptance={SERVER: sum(timing.num_accepted for timing in timings) / num_tokens},
            forwards=num_passes,
            also={
                "acceptance": fmean(is_right for path in paths for is_right in path.accepted),
                "first_s": median(timing.committed_s[0] for timing in timings),
                "floors_s": _pace_s(bare),
                "vote_bytes": fmean(path.vote_bytes for path in paths),
                "certified": fmean(path.certified for path in paths),
            },
        )

    def _times(self, setting: Setting) -> tuple[Times, Times]:
        """With the parties' own work, where it was measured, and with the floors alone."""
        bare = Times(passes_s=floors_s(setting), rtt_s=setting.rtt_s)
        calibration = self._calibrations.get(replace(setting, rtt_s=0.0))
        return (bare if calibration is None else calibration.times(setting)), bare

    def _follow(self, setting: Setting) -> list[Path]:
        key = (setting.temperature, setting.max_new_tokens)
        if key not in self._paths:
            options: Any = {"temperature": key[0], "max_new_tokens": key[1], "draft_rule": "coupled"}
            local = self._load()
            self._paths[key] = [
                follow(local, local.make_spec(question, seed, **options))
                for seed, question in enumerate(self._questions)
            ]
        return self._paths[key]


def _pace_s(timings: Sequence[Timing]) -> float:
    """Seconds per token."""
    return pace_s([timing.committed_s for timing in timings])


def follow(local: LocalWorkers, spec: SessionSpec) -> Path:
    """The answer of the draft-free loop (`tandem.modes.reference`) with coupled drafts, in arrays, and what is seen."""
    voters = [local.voter(spec, name) for name in spec.roles.voters]
    drafter, is_complete = local.voter(spec, spec.home), local.is_complete(spec)
    tokens: list[int] = []
    accepted, sizes, certain = list[bool](), list[int](), list[bool]()
    while not is_complete(tokens):
        step, votes = len(tokens), [voter.distribution(tokens) for voter in voters]
        clocks = noise(spec.seed, step, np.arange(spec.vocab_size)) if spec.sampling.temperature else 1.0
        target = mix(votes, spec.weights)
        token = int(np.argmax(target / clocks))
        accepted.append(int(np.argmax(drafter.distribution(tokens) / clocks)) == token)
        if spec.rules.has_race_lists:
            options: Any = {"seed": spec.seed, "step": step, "temperature": spec.sampling.temperature}
            lists = [race_list(vote, spec.race_depth, **options) for vote in votes]
            sizes += [len(encode_race_list(each, spec.vocab_size)) for each in lists]
            certain.append(certify(lists, spec.weights, **options).is_certain)
        tokens.append(token)
    return Path(
        tuple(tokens), tuple(accepted), fmean(sizes) if sizes else nan, fmean(certain) if certain else nan
    )


def mix(votes: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> NDArray[np.float64]:
    """The target [vocab], summed in the voters' order."""
    target = weights[0] * votes[0]
    for weight, vote in zip(weights[1:], votes[1:], strict=True):
        target = target + weight * vote
    return target


def _predictor(config: Config, questions: Sequence[str]) -> Predicts:
    return Predictor(partial(LocalWorkers, config), questions)


# ---- The parties' own work ---------------------------------------------------------------------------------------


SERVER_CORE, WORKERS_CORE = 0, 1
TRIAL_S, NUM_STEPS = 0.001, 3
"""How far the search for the times that are left looks ahead, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Of one number of workers."""

    work: Work
    hop_s: float  # between two actors of one party
    late_s: float  # at the end of a pass

    def times(self, setting: Setting) -> Times:
        """Those of a setting."""
        return Times(
            passes_s=floors_s(setting),
            rtt_s=setting.rtt_s,
            hop_s=self.hop_s,
            late_s=self.late_s,
            work=self.work,
        )


def floors_s(setting: Setting) -> dict[str, float]:
    """The least time of a pass, by party."""
    assert setting.floors_s is not None
    server_s, worker_s = setting.floors_s
    passes_s = {SERVER: server_s, **dict.fromkeys(setting.workers, worker_s)}
    passes_s[setting.workers[-1]] = setting.slow * worker_s
    return passes_s


def calibrate(cell: Cell, play_s: Callable[[System, Times], float]) -> Calibration:
    """From answers without a delay. play_s: seconds per token of the same answers in the simulation."""
    bare = Times(passes_s=floors_s(cell.setting), rtt_s=0.0, work=work_of(cell))
    measured_s = np.array([token_s(cell.of(system.name)) for system in CALIBRATION])
    trials = TRIAL_S * np.eye(2)

    def played_s(left_s: NDArray[np.float64]) -> NDArray[np.float64]:
        times = replace(bare, hop_s=float(left_s[0]), late_s=float(left_s[1]))
        return np.array([play_s(system, times) for system in CALIBRATION])

    left_s = np.zeros(2)
    for _ in range(NUM_STEPS):  # Newton's: both paces are nearly linear in both times
        here_s = played_s(left_s)
        slopes = np.column_stack([(played_s(left_s + trial) - here_s) / TRIAL_S for trial in trials])
        left_s = nearest_at_least_0(slopes, measured_s - here_s + slopes @ left_s)
    assert bare.work is not None
    return Calibration(work=bare.work, hop_s=float(left_s[0]), late_s=float(left_s[1]))


def nearest_at_least_0(slopes: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x [2], nowhere below 0, whose slopes @ x is nearest to `wanted`: both of its values, one alone, or none."""
    tried: list[NDArray[np.float64]] = []
    for used in ([True, True], [True, False], [False, True], [False, False]):
        values = np.zeros(2)
        values[used] = np.linalg.lstsq(slopes[:, used], wanted, rcond=None)[0]
        if (values >= 0.0).all():
            tried.append(values)
    return min(tried, key=lambda values: float(np.linalg.norm(slopes @ values - wanted)))


def work_of(cell: Cell) -> Work:
    """Processor time of passes and frames, of all records of a cell; workers are alike."""
    workers = cell.setting.workers
    asked, proposed = cell.of(TOKEN_WISE.name), cell.of(STOP_AND_WAIT.name)
    short_s, long_s = (_decoder_s(records, workers) for records in (asked, proposed))
    # A pass of the token-wise loop votes on one token; one of stop-and-wait on the proposed ones and one more.
    num_tokens = 1.0 + ratio(_num_passes(proposed, [SERVER]), _num_passes(proposed, workers[:1]))
    token_s = max(0.0, (long_s - short_s) / (num_tokens - 1.0))
    token_s = min(token_s, short_s)
    return Work(
        pass_s={SERVER: _decoder_s(proposed, [SERVER]), **dict.fromkeys(workers, short_s - token_s)},
        token_s={SERVER: 0.0, **dict.fromkeys(workers, token_s)},
        frame_s={
            SERVER: _frame_s([*asked, *proposed], [SERVER]),
            **dict.fromkeys(workers, _frame_s([*asked, *proposed], workers)),
        },
        core={SERVER: SERVER_CORE, **dict.fromkeys(workers, WORKERS_CORE)},
    )


def token_s(records: Sequence[Record]) -> float:
    """Seconds per token of all answers."""
    return pace_s([record.committed_s for record in records])


def _decoder_s(records: Sequence[Record], parties: Sequence[str]) -> float:
    """Processor time of a pass."""
    return ratio(_cpu_s(records, parties, is_decoder=True), _num_passes(records, parties))


def _frame_s(records: Sequence[Record], parties: Sequence[str]) -> float:
    """Processor time of a frame at a party's draft queue and the actors that share its process. Every frame is one
    that the server sends or takes in, and so is it for a worker."""
    num_frames = sum(sum(record.num_frames.values()) for record in records)
    return ratio(_cpu_s(records, parties, is_decoder=False), num_frames)


def _cpu_s(records: Sequence[Record], parties: Sequence[str], *, is_decoder: bool) -> float:
    return sum(
        seconds
        for record in records
        for name, seconds in record.cpu_s.items()
        if name.partition("/")[0] in parties
        and isfinite(seconds)
        and ("decoder" in name.partition("/")[2]) == is_decoder
        and "retriever" not in name.partition("/")[2].split("+")
    )


def _num_passes(records: Sequence[Record], parties: Sequence[str]) -> int:
    """Those that were abandoned count."""
    return sum(
        record.num_forwards.get(party, 0) + record.num_abandoned.get(party, 0)
        for record in records
        for party in parties
    )


def describe(calibration: Calibration, setting: Setting, off: float) -> str:
    """One line for a person. off: of stop-and-wait without a delay, of its simulation."""
    work, worker = calibration.work, setting.workers[0]
    return (
        f"calibrated: {setting.num_workers} workers: a draft {1e3 * work.pass_s[SERVER]:.1f} ms of processor time, a "
        f"pass {1e3 * work.pass_s[worker]:.1f} + {1e3 * work.token_s[worker]:.1f} per token, a frame "
        f"{1e3 * work.frame_s[SERVER]:.1f} at the server and {1e3 * work.frame_s[worker]:.1f} at a worker, "
        f"{1e3 * calibration.hop_s:.1f} between "
        f"actors, {1e3 * calibration.late_s:.1f} at the end of a pass; stop_and_wait without a delay {off:+.0%}"
    )


# ---- What must hold ----------------------------------------------------------------------------------------------


AGREEMENT = 0.10
"""Deviation of the measured time per token from the prediction, at most."""
VOTE_BYTES = 60.0
"""Payload of a vote, at most."""


def checks(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    """All promises for one setting; gains over the token-wise loop are those of the model for this acceptance."""
    yield from exactness(rows, "the tokens of the draft-free loop")
    base = rows.get(TOKEN_WISE.name)
    for name in (STOP_AND_WAIT.name, PIPELINED.name):
        row = rows.get(name)
        if base is None or row is None:
            continue
        measured, predicted = base.token_s / row.token_s, base.predicted_s / row.predicted_s
        yield Check(
            promise=f"{name} gains on the token-wise loop what its acceptance gives, within {AGREEMENT:.0%}",
            numbers=f"{measured:.2f} x, predicted {predicted:.2f} x at {row.accepted.get(SERVER, 0.0):.2f} accepted",
            holds=abs(measured / predicted - 1.0) <= AGREEMENT if isfinite(predicted) else None,
        )
    sizes = [size for row in rows.values() if isfinite(size := row.prediction.also.get("vote_bytes", nan))]
    if sizes:
        yield Check(
            promise=f"a vote has at most {VOTE_BYTES:.0f} bytes",
            numbers=f"{max(sizes):.1f} bytes on average, without its frame",
            holds=max(sizes) <= VOTE_BYTES,
        )
    yield from agreement(rows, AGREEMENT)


# ---- The suite ---------------------------------------------------------------------------------------------------


def _passes(forwards: Mapping[str, float], cell: Cell) -> float:
    """Of a worker, mean."""
    workers = cell.setting.workers
    return ratio(sum(forwards.get(name, nan) for name in workers), len(workers))


def _per_worker(title: str, sender: str) -> Column:
    return Column(
        title,
        6,
        lambda row, rows, cell: shown(ratio(row.data_bytes(sender), cell.setting.num_workers), ".0f"),
    )


def _mean_passes(row: Row, rows: Mapping[str, Row], cell: Cell) -> str:
    return "/".join(shown(_passes(each, cell), ".2f") for each in (row.forwards, row.prediction.forwards))


COLUMNS = (
    PACE,
    PREDICTED,
    OFF,
    told("floors", 6, ".1f", "floors_s", 1e3),
    FIRST,
    value("accepted", 8, ".2f", lambda row: row.accepted.get(SERVER, 0.0)),
    forwards("drafts", SERVER),
    Column("passes", 11, _mean_passes),
    _per_worker("up B", "cloud"),
    _per_worker("down B", "device"),
    told("vote B", 6, ".0f", "vote_bytes"),
    told("settled", 7, ".1f", "certified", 100),
    WRONG,
    Column(
        "last vote",
        9,
        lambda row, rows, cell: "/".join(shown(100 * s, ".0f") for s in row.waited_for.values()),
    ),
)
LEGEND = """\
Measured/predicted; all but TTFT is per token. ms/token: after the tokens of the first verdict, median of runs.
predicted: from acceptance, floors, link, and the parties' own work as measured without a delay, on token-wise and
stop-and-wait answers; floors: predicted as if they had no work but the floors.
accepted: share of the committed tokens that the server had proposed. drafts: forwards of the server; passes: of a
worker. up, down: bytes from and to one worker on its data connection, with headers and acknowledgements; vote B: of a
vote's race list, without its frame. settled: steps that these lists settle at once, in percent, as predicted.
wrong: tokens that are not those of the draft-free loop. last vote: for whose vote the others waited, in percent of the
tokens, by worker."""


def configure(config: Config) -> Config:
    """The settings of the clusters: document weights stay as they begin, so that nothing but the mode takes time."""
    return replace(config, weights=replace(config.weights, question=0.0, evidence=0.0))


SUITE = Suite(
    name="federated",
    page="docs/how-to/federated.md",
    systems=FEDERATED,
    warm_up=TOKEN_WISE,
    axes={
        "close": Axes(
            rtts_s=(0.05, 0.1, 0.2, 0.3),
            rates=(None,),
            temperatures=(1.0,),
            floors=((0.015, 0.027),),
            workers=(2, 4),
            slow=(1.0,),
        )
    },
    smoke=Axes(rtts_s=(0.1,), workers=(2,)),
    max_new_tokens=48,
    runs=2,
    takes=frozenset({"workers", "slow"}),
    configure=configure,
    predict=_predictor,
    tables=(COLUMNS,),
    legend=LEGEND,
    checks=checks,
    draw=plots.plot_times,
    pictures=("times.png",),
    calibration=CALIBRATION,
)
