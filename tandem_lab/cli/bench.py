"""`tandem lab bench latency` and `ttft`: DRAGON's Figures 6 and 7 over the test network.

Two processes of one command line, as for `tandem lab replay`: the outer one checks everything that a user can get
wrong, builds the network and removes it; the inner one runs in the device's host of it and measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from tandem.cli.options import ConfigFile, Overrides, load_settings, with_options
from tandem.cli.output import StageLog
from tandem.cli.usage import new_app
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem_lab.cli import outputs
from tandem_lab.cli.bench_options import (
    DEPLOYMENTS,
    PLANES,
    QUESTIONS,
    RUNS,
    Deployments,
    ListCommand,
    MinDecodeTimes,
    ModelPair,
    NumQuestions,
    Out,
    Planes,
    Rtts,
    Runs,
    Smoke,
    Systems,
    Temperatures,
    Within,
    parse_floors,
    parse_temperature,
)
from tandem_lab.cli.inner import run_inside
from tandem_lab.latency.plan import (
    FLOORS_S,
    HALF_RTTS_S,
    HALF_SYSTEMS,
    HALF_TEMPERATURES,
    LATENCY_TOKENS,
    RTTS_S,
    TEMPERATURES,
    TTFT_TOKENS,
    CellPlan,
    Plan,
    full_cells,
    in_turns,
    plan_of,
    select_cells,
)
from tandem_lab.latency.records import DataPlane, Deployment, Models
from tandem_lab.latency.systems import SYSTEMS, System, select_systems
from tandem_lab.netlab import NetLab
from tandem_lab.netlab.shape import Shape, parse_duration

if TYPE_CHECKING:
    from tandem_lab.latency.records import Cell

NAMES = ("results.json", "table.txt", "latency.png", "ttft.png", "cells.jsonl")
SMOKE_SYSTEMS = ("CRCG/device", "CRCG/cloud", "DRCG/Text", "DRDG/TW", "Tandem/mirror")
SMOKE_RTT = "100ms"
DEFAULTS: dict[Models, tuple[Sequence[float], Sequence[float], Sequence[System]]] = {
    "configured": (RTTS_S, TEMPERATURES, SYSTEMS),
    "half": (HALF_RTTS_S, HALF_TEMPERATURES, HALF_SYSTEMS),
}
"""Round trips, temperatures and systems of a part that does not name its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The part of the full grid that a command line names; empty: all of it."""

    rtts: Sequence[str] = ()
    temperatures: Sequence[str] = ()
    systems: Sequence[str] = ()
    data_planes: Sequence[str] = ()
    deployments: Sequence[str] = ()
    min_decode_times: Sequence[str] = ()
    models: Models | None = None
    runs: int = RUNS
    num_questions: int = QUESTIONS
    is_smoke: bool = False


def _bench() -> None:
    """Measure every system of DRAGON's figures over the test network (as root)."""


app = new_app(_bench)


@app.command(cls=ListCommand)
@with_options(models=True)
def latency(
    context: typer.Context,
    rtts: Rtts = None,
    temperatures: Temperatures = None,
    systems: Systems = None,
    data_planes: Planes = None,
    deployments: Deployments = None,
    min_decode_times: MinDecodeTimes = None,
    models: ModelPair = None,
    runs: Runs = None,
    questions: NumQuestions = None,
    out: Out = None,
    smoke: Smoke = False,
    within: Within = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Measure time per token, with whole answers; without options over the full grid."""
    grid = _grid(
        rtts=rtts,
        temperatures=temperatures,
        systems=systems,
        data_planes=data_planes,
        deployments=deployments,
        min_decode_times=min_decode_times,
        models=models,
        runs=runs,
        num_questions=questions,
        is_smoke=smoke,
    )
    config = load_settings(config_file, overrides)
    return _run(context, grid, config, LATENCY_TOKENS, out or "bench/latency", within)


@app.command(cls=ListCommand)
@with_options(models=True)
def ttft(
    context: typer.Context,
    rtts: Rtts = None,
    temperatures: Temperatures = None,
    systems: Systems = None,
    data_planes: Planes = None,
    deployments: Deployments = None,
    min_decode_times: MinDecodeTimes = None,
    models: ModelPair = None,
    runs: Runs = None,
    questions: NumQuestions = None,
    out: Out = None,
    smoke: Smoke = False,
    within: Within = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Measure time to first token, with answers of two tokens; without options over the full grid."""
    grid = _grid(
        rtts=rtts,
        temperatures=temperatures,
        systems=systems,
        data_planes=data_planes,
        deployments=deployments,
        min_decode_times=min_decode_times,
        models=models,
        runs=runs,
        num_questions=questions,
        is_smoke=smoke,
    )
    config = load_settings(config_file, overrides)
    return _run(context, grid, config, TTFT_TOKENS, out or "bench/ttft", within)


def _grid(
    *,
    rtts: list[str] | None,
    temperatures: list[str] | None,
    systems: list[str] | None,
    data_planes: list[str] | None,
    deployments: list[str] | None,
    min_decode_times: list[str] | None,
    models: str | None,
    runs: int | None,
    num_questions: int | None,
    is_smoke: bool,
) -> Grid:
    return Grid(
        rtts=rtts or (),
        temperatures=temperatures or (),
        systems=systems or (),
        data_planes=data_planes or (),
        deployments=deployments or (),
        min_decode_times=min_decode_times or (),
        models=cast("Models | None", models),
        runs=runs or RUNS,
        num_questions=num_questions or QUESTIONS,
        is_smoke=is_smoke,
    )


def _run(
    context: typer.Context, grid: Grid, config: Config, max_new_tokens: int, out: str, within: str | None
) -> int:
    """Raises TandemError; of network and cluster nothing is left in any case, of what was measured every cell."""
    log = StageLog()
    plan, folder = make_plan(grid, config, max_new_tokens), outputs.check_folder("--out", out, NAMES)
    if within is not None:
        return measure(NetLab(within), config, plan, folder, log)
    return run_inside(context, log)


# ---- what is to be measured --------------------------------------------------------------------------------------


def make_plan(grid: Grid, config: Config, max_new_tokens: int) -> Plan:
    """The cells, runs and questions of a benchmark. Raises TandemError."""
    from tandem_lab.quality.questions import question_texts

    runs, num_questions = (1, 1) if grid.is_smoke else (grid.runs, grid.num_questions)
    questions = question_texts(None, config)
    if num_questions > len(questions):
        raise TandemError(
            f"There are {len(questions)} questions about these documents, but --questions asks for {num_questions}; "
            "ask for fewer."
        )
    return plan_of(config, _cells(grid, max_new_tokens), questions, num_questions, runs)


def _cells(grid: Grid, max_new_tokens: int) -> tuple[CellPlan, ...]:
    """The full grid, unless the command line names a part of one."""
    names_a_part = any(
        (
            grid.rtts,
            grid.temperatures,
            grid.systems,
            grid.data_planes,
            grid.deployments,
            grid.min_decode_times,
            grid.models,
        )
    )
    if not grid.is_smoke and not names_a_part:
        return full_cells(max_new_tokens)
    models = grid.models or "configured"
    rtts_s, temperatures, systems = DEFAULTS[models]
    default_rtts = [SMOKE_RTT] if grid.is_smoke else [f"{1e3 * rtt_s:g}ms" for rtt_s in rtts_s]
    default_temperatures = ["0"] if grid.is_smoke else [f"{temperature:g}" for temperature in temperatures]
    names = grid.systems or (SMOKE_SYSTEMS if grid.is_smoke else [system.name for system in systems])
    cells = select_cells(
        select_systems(names),
        [Shape(rtt_s=parse_duration(text)).rtt_s for text in grid.rtts or default_rtts],
        [parse_temperature(text) for text in grid.temperatures or default_temperatures],
        cast("Sequence[DataPlane]", grid.data_planes or PLANES[:1]),
        [parse_floors(text) for text in grid.min_decode_times] if grid.min_decode_times else [FLOORS_S],
        max_new_tokens,
        models,
    )
    return in_turns(cells, cast("Sequence[Deployment]", grid.deployments or DEPLOYMENTS[:1]))


# ---- in the device's host ----------------------------------------------------------------------------------------


def measure(lab: NetLab, config: Config, plan: Plan, folder: Path, log: StageLog) -> int:
    """Predict, measure what is missing, write. Raises TandemError."""
    from tandem_lab.latency.half import configs_of
    from tandem_lab.latency.memoized import local_pair
    from tandem_lab.latency.predictions import Predictor
    from tandem_lab.latency.runner import Bench

    with configs_of(plan, config) as configs:
        predictors = {
            models: Predictor(partial(local_pair, own), own, plan.questions)
            for models, own in configs.items()
        }
        cells = Bench(lab, configs, plan, folder, predictors, log).run()
    return write_report(cells, config, folder, log)


def write_report(cells: Sequence[Cell], config: Config, folder: Path, log: StageLog) -> int:
    """Print the table and write all files. Raises TandemError."""
    from tandem_lab.latency.plot import FIRST, TOKEN, plot_latency
    from tandem_lab.latency.tables import text_of, values_of

    outputs.write_cells(folder, text_of(cells), values_of(cells), config)
    plot_latency(cells, folder / "latency.png", TOKEN)
    plot_latency(cells, folder / "ttft.png", FIRST)
    log(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    return 0
