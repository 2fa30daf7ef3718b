"""`tandem lab bench speculative`: edge-cloud speculative decoding over the test network, beside its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tandem.cli.options import ConfigFile, Overrides, load_settings, parse_count, with_options
from tandem.cli.output import StageLog
from tandem.config.extensions import CodecConfig
from tandem.config.presets import PRESETS
from tandem.config.schema import Config
from tandem_lab.cli import outputs
from tandem_lab.cli.bench_options import (
    DEPLOYMENTS,
    QUESTIONS,
    Deployments,
    NumQuestions,
    Rtts,
    Smoke,
    Temperatures,
    Within,
    parse_floors,
    parse_models,
    parse_temperature,
)
from tandem_lab.cli.inner import run_inside
from tandem_lab.latency.plan import CellPlan, Plan, in_turns, informative_at, plan_of
from tandem_lab.latency.records import Deployment, Models, Setting
from tandem_lab.latency.systems import System, select_systems
from tandem_lab.netlab import NetLab
from tandem_lab.netlab.bundled import bundled
from tandem_lab.netlab.shape import Shape, parse_duration, parse_rate
from tandem_lab.speculative.systems import PAGE, STREAMED, SYSTEMS

if TYPE_CHECKING:
    from tandem_lab.latency.records import Cell

NAMES = ("results.json", "table.txt", "throughput.png", "lengths.png", "cells.jsonl")
RTTS, RATES, TEMPERATURES = (
    ("0", "50ms", "100ms", "300ms"),
    ("10kbit", "100kbit", "1mbit", "unlimited"),
    ("0", "0.6", "1"),
)
FLOORS = "0.015,0.027"
MODELS = ("close", "configured")
RUNS, MAX_NEW_TOKENS = 3, 48
SMOKE = {"rtts": ("100ms",), "rates": ("unlimited",), "temperatures": ("1",)}

LinkRates = Annotated[
    list[str] | None,
    typer.Option("--rate", metavar="R ...", help="of the link, each way, such as 10kbit 1mbit unlimited"),
]
Systems = Annotated[
    list[str] | None, typer.Option(metavar="NAME ...", help="such as asked streamed pipelined cloud_goes_on")
]
MinDecodeTimes = Annotated[
    list[str] | None,
    typer.Option(
        "--min-decode-time",
        metavar="D,C ...",
        help="the least time that a draft of the device and a pass of the cloud take, in seconds, or none "
        f"(default: {FLOORS})",
    ),
]
ModelPair = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="M",
        parser=partial(parse_models, allowed=MODELS),
        help="close, two random models of 50,000 tokens that mostly agree and write 48 tokens, or configured, "
        "those of the settings (default: close)",
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(metavar="N", parser=parse_count, help=f"take medians over N runs (default: {RUNS})"),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="where the files go (default: bench/speculative); cells measured there are kept"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The part of the full grid that a command line names; empty: all of it."""

    rtts: Sequence[str] = ()
    rates: Sequence[str] = ()
    temperatures: Sequence[str] = ()
    systems: Sequence[str] = ()
    deployments: Sequence[str] = ()
    min_decode_times: Sequence[str] = ()
    models: Models = "close"
    runs: int = RUNS
    num_questions: int = QUESTIONS
    is_smoke: bool = False


@with_options(models=True)
def speculative(
    context: typer.Context,
    rtts: Rtts = None,
    rates: LinkRates = None,
    temperatures: Temperatures = None,
    systems: Systems = None,
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
    """Measure speculative decoding over round trips and rates; without options over the full grid."""
    grid = Grid(
        rtts=rtts or (),
        rates=rates or (),
        temperatures=temperatures or (),
        systems=systems or (),
        deployments=deployments or (),
        min_decode_times=min_decode_times or (),
        models=cast("Models", models or "close"),
        runs=runs or RUNS,
        num_questions=questions or QUESTIONS,
        is_smoke=smoke,
    )
    log = StageLog()
    config = config_for(load_settings(config_file, overrides))
    plan = make_plan(grid, config)
    folder = outputs.check_folder("--out", out or "bench/speculative", NAMES)
    return run_inside(context, log) if within is None else measure(NetLab(within), config, plan, folder, log)


def config_for(config: Config) -> Config:
    """The settings of the clusters: distributions by K-SQS with K = 16 unless another codec is named, QS's heuristic
    loaded, document weights that stay as they begin, so that nothing but the mode takes time.
    """
    is_default = config.codec == CodecConfig()
    codec = (
        CodecConfig(name="tandem.papers.sqs:KSqs", parameters={"index": "paper"})
        if is_default
        else config.codec
    )
    return replace(
        config,
        codec=codec,
        decoding=replace(config.decoding, length_policy=PRESETS["qs"]["decoding"]["length_policy"]),
        weights=replace(config.weights, question=0.0, evidence=0.0),
    )


def make_plan(grid: Grid, config: Config) -> Plan:
    """The cells, runs and questions of the benchmark. Raises TandemError."""
    from tandem_lab.quality.questions import question_texts

    questions = question_texts(None, config)
    runs, num_questions = (1, 1) if grid.is_smoke else (grid.runs, min(grid.num_questions, len(questions)))
    names = grid.systems or [system.name for system in SYSTEMS]
    cells = _cells(grid, select_systems(names, SYSTEMS, PAGE))
    return plan_of(config, cells, questions, num_questions, runs)


def _cells(grid: Grid, systems: Sequence[System]) -> tuple[CellPlan, ...]:
    def chosen(name: str, named: Sequence[str], full: Sequence[str]) -> Sequence[str]:
        return named or (SMOKE[name] if grid.is_smoke else full)

    floors = [parse_floors(text) for text in grid.min_decode_times or (FLOORS,)]
    rtts_s = [Shape(rtt_s=parse_duration(text)).rtt_s for text in chosen("rtts", grid.rtts, RTTS)]
    rates = [
        Shape(rate_bits_per_s=parse_rate(text)).rate_bits_per_s for text in chosen("rates", grid.rates, RATES)
    ]
    temperatures = [
        parse_temperature(text) for text in chosen("temperatures", grid.temperatures, TEMPERATURES)
    ]
    cells = [
        CellPlan(
            setting=Setting(
                data_plane="socket",
                floors_s=floors_s,
                rtt_s=rtt_s,
                temperature=temperature,
                max_new_tokens=MAX_NEW_TOKENS,
                models=grid.models,
                bits_per_s=bits_per_s,
            ),
            systems=informative_at(systems, temperature),
        )
        for floors_s, temperature, bits_per_s, rtt_s in product(floors, temperatures, rates, rtts_s)
    ]
    return in_turns(cells, cast("Sequence[Deployment]", grid.deployments or DEPLOYMENTS[:1]))


def measure(lab: NetLab, config: Config, plan: Plan, folder: Path, log: StageLog) -> int:
    """Predict, measure what is missing, write. Raises TandemError."""
    from tandem_lab.latency.half import configs_of
    from tandem_lab.latency.memoized import local_pair
    from tandem_lab.latency.runner import Bench
    from tandem_lab.speculative.predictions import SpeculativePredictor

    with configs_of(plan, config) as configs:
        predictors = {
            models: SpeculativePredictor(partial(local_pair, own), own, plan.questions)
            for models, own in configs.items()
        }
        cells = Bench(lab, configs, plan, folder, predictors, log, STREAMED).run()
    return write_report(cells, config, folder, log)


def write_report(cells: Sequence[Cell], config: Config, folder: Path, log: StageLog) -> int:
    """Print the table and write all files. Raises TandemError."""
    from tandem_lab.speculative.plot import plot_lengths, plot_throughput
    from tandem_lab.speculative.tables import text_of, values_of
    from tandem_lab.speculative.trace import TRACE, play_policies

    outputs.write_cells(folder, text_of(cells), values_of(cells), config)
    plot_throughput(cells, folder / "throughput.png")
    plot_lengths(play_policies(), bundled(TRACE), folder / "lengths.png")
    log(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    return 0
