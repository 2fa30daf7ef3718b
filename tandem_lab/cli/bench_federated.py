"""`tandem lab bench federated`: a server and its workers over the test network, beside the token-wise loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.options import ConfigFile, Overrides, load_settings, parse_count
from tandem.cli.output import StageLog
from tandem.config.parties import MIN_WORKERS
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem.topology import MAX_PARTIES
from tandem_lab.cli import outputs
from tandem_lab.cli.bench_options import (
    QUESTIONS,
    NumQuestions,
    Rtts,
    Smoke,
    Within,
    parse_floors,
)
from tandem_lab.cli.inner import run_inside
from tandem_lab.federated.systems import CALIBRATION, PAGE, SYSTEMS, TOKEN_WISE
from tandem_lab.latency.plan import CellPlan, Plan, plan_of
from tandem_lab.latency.records import Setting
from tandem_lab.latency.systems import select_systems
from tandem_lab.netlab import NetLab
from tandem_lab.netlab.shape import Shape, parse_duration

if TYPE_CHECKING:
    from tandem_lab.latency.records import Cell

NAMES = ("results.json", "table.txt", "times.png", "cells.jsonl")
RTTS, WORKERS, SLOW = ("50ms", "100ms", "200ms", "300ms"), (2, 4), (1.0,)
FLOORS = "0.015,0.027"
RUNS, MAX_NEW_TOKENS, TEMPERATURE = 2, 48, 1.0
SMOKE_RTTS, SMOKE_WORKERS = ("100ms",), (2,)


def parse_workers(text: str) -> int:
    """How many workers. Raises a usage error."""
    if not (text.isdecimal() and MIN_WORKERS <= int(text) < MAX_PARTIES):
        raise typer.BadParameter(f"must be {MIN_WORKERS} to {MAX_PARTIES - 1} workers (got {text!r})")
    return int(text)


def parse_slow(text: str) -> float:
    """How many times as slow one worker is. Raises TandemError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 100:
        raise TandemError(f"--slow must be a number from 1 to 100, such as 4 (got {text!r}).")
    return value


Workers = Annotated[
    list[int] | None,
    typer.Option("--workers", metavar="N ...", parser=parse_workers, help="how many vote (default: 2 and 4)"),
]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        "--slow", metavar="X ...", help="the last worker's passes take X times as long (default: 1)"
    ),
]
Systems = Annotated[
    list[str] | None, typer.Option(metavar="NAME ...", help="such as token-wise stop_and_wait pipelined")
]
MinDecodeTimes = Annotated[
    list[str] | None,
    typer.Option(
        "--min-decode-time",
        metavar="S,W ...",
        help="the least time that a draft of the server and a pass of a worker take, in seconds, or none "
        f"(default: {FLOORS})",
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(metavar="N", parser=parse_count, help=f"take medians over N runs (default: {RUNS})"),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="where the files go (default: bench/federated); cells measured there are kept"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The part of the full grid that a command line names; empty: all of it."""

    rtts: Sequence[str] = ()
    workers: Sequence[int] = ()
    slow: Sequence[str] = ()
    systems: Sequence[str] = ()
    min_decode_times: Sequence[str] = ()
    runs: int = RUNS
    num_questions: int = QUESTIONS
    is_smoke: bool = False


def federated(
    context: typer.Context,
    rtts: Rtts = None,
    workers: Workers = None,
    slow: Slow = None,
    systems: Systems = None,
    min_decode_times: MinDecodeTimes = None,
    runs: Runs = None,
    questions: NumQuestions = None,
    out: Out = None,
    smoke: Smoke = False,
    within: Within = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Measure federated decoding over round trips and numbers of workers; without options over the full grid."""
    grid = Grid(
        rtts=rtts or (),
        workers=workers or (),
        slow=slow or (),
        systems=systems or (),
        min_decode_times=min_decode_times or (),
        runs=runs or RUNS,
        num_questions=questions or QUESTIONS,
        is_smoke=smoke,
    )
    log = StageLog()
    config = config_for(load_settings(config_file, overrides))
    plan = make_plan(grid, config)
    folder = outputs.check_folder("--out", out or "bench/federated", NAMES)
    return run_inside(context, log) if within is None else measure(NetLab(within), config, plan, folder, log)


def config_for(config: Config) -> Config:
    """The settings of the clusters: fixed weights of workers, and document weights that stay as they begin, so that
    nothing but the mode takes time."""
    return replace(config, weights=replace(config.weights, question=0.0, evidence=0.0, workers="fixed"))


def make_plan(grid: Grid, config: Config) -> Plan:
    """The cells, runs and questions of the benchmark. Raises TandemError."""
    from tandem_lab.quality.questions import question_texts

    questions = question_texts(None, config)
    runs, num_questions = (1, 1) if grid.is_smoke else (grid.runs, min(grid.num_questions, len(questions)))
    return plan_of(config, _cells(grid), questions, num_questions, runs)


def _cells(grid: Grid) -> list[CellPlan]:
    names = grid.systems or [system.name for system in SYSTEMS]
    systems = select_systems(names, SYSTEMS, PAGE)
    floors = [parse_floors(text) for text in grid.min_decode_times or (FLOORS,)]
    rtts = grid.rtts or (SMOKE_RTTS if grid.is_smoke else RTTS)
    workers = grid.workers or (SMOKE_WORKERS if grid.is_smoke else WORKERS)
    slow = [parse_slow(text) for text in grid.slow] or SLOW
    rtts_s = [Shape(rtt_s=parse_duration(text)).rtt_s for text in rtts]
    return [
        CellPlan(
            setting=Setting(
                data_plane="socket",
                floors_s=floors_s,
                rtt_s=rtt_s,
                temperature=TEMPERATURE,
                max_new_tokens=MAX_NEW_TOKENS,
                models="close",
                num_workers=num_workers,
                slow=times,
            ),
            systems=systems,
        )
        for floors_s, num_workers, times, rtt_s in product(floors, workers, slow, rtts_s)
    ]


def calibration_of(plan: Plan) -> Plan:
    """What is measured first, without a delay, for the predictions of these cells."""
    settings = {
        replace(cell.setting, rtt_s=0.0): None for cell in plan.cells if cell.setting.floors_s is not None
    }
    return replace(plan, cells=tuple(CellPlan(setting=setting, systems=CALIBRATION) for setting in settings))


def measure(lab: NetLab, config: Config, plan: Plan, folder: Path, log: StageLog) -> int:
    """Calibrate, predict, measure what is missing, write. Raises TandemError."""
    from tandem_lab.federated.predictions import FederatedPredictor
    from tandem_lab.federated.workers import LocalWorkers
    from tandem_lab.latency.half import configs_of
    from tandem_lab.latency.runner import Bench

    with configs_of(plan, config) as configs:
        predictors = {
            group: FederatedPredictor(partial(LocalWorkers, own), plan.questions)
            for group, own in configs.items()
        }
        for cell in Bench(lab, configs, calibration_of(plan), folder, predictors, log, TOKEN_WISE).run():
            log(predictors[cell.setting.group].calibrate(cell))
        cells = Bench(lab, configs, plan, folder, predictors, log, TOKEN_WISE).run()
    return write_report(cells, config, folder, log)


def write_report(cells: Sequence[Cell], config: Config, folder: Path, log: StageLog) -> int:
    """Print the table and write all files. Raises TandemError."""
    from tandem_lab.federated.plot import plot_times
    from tandem_lab.federated.tables import text_of, values_of

    outputs.write_cells(folder, text_of(cells), values_of(cells), config)
    plot_times(cells, folder / "times.png")
    log(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    return 0
