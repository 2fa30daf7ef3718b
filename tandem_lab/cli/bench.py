"""`tandem lab bench SUITE`: one benchmark over the test network, with the suites of `tandem_lab.bench`.

Two processes of one command line, as for `tandem lab replay`: the outer one checks everything that a user can get
wrong, builds the network and removes it; the inner one runs in the device's host of it and measures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperCommand

from tandem.cli.options import MODELS, SettingsOptions, with_options
from tandem.cli.output import StageLog
from tandem.config.parties import MIN_WORKERS
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem.topology import MAX_PARTIES
from tandem_lab.bench import dual, federated, speculative
from tandem_lab.bench.plan import CellPlan, Plan, plan_of
from tandem_lab.bench.records import Cell, Deployment, Models
from tandem_lab.bench.suite import Axes, Suite
from tandem_lab.cli import outputs
from tandem_lab.netlab import NetLab, tools
from tandem_lab.netlab.shape import Shape, parse_duration, parse_rate

SUITES = {suite.name: suite for suite in (dual.LATENCY, dual.TTFT, speculative.SUITE, federated.SUITE)}
QUESTIONS = 3
"""Three bundled answers have 42 tokens."""
FILES = ("results.json", "table.txt", "cells.jsonl")
DEPLOYMENTS = ("ray", "join")
NO_FLOORS = "none"
T = TypeVar("T")


class ListCommand(TyperCommand):
    """Words behind the value of a repeatable option are more values: `--rtt 0 1s` is `--rtt 0 --rtt 1s`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class."""
        parameters: list[Any] = list(self.params)
        repeatable = {name for parameter in parameters if parameter.multiple for name in parameter.opts}
        words, option = list[str](), ""
        for before, word in zip(["", *args], args, strict=False):
            if word.startswith("-"):
                name = word.partition("=")[0]
                option = name if name in repeatable else ""
            elif option and before != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words)


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    """Reads one of some words. Raises a usage error."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"must be {' or '.join(words)} (got {text!r})")
        return text

    return parse


def parse_workers(text: str) -> int:
    """How many workers. Raises a usage error."""
    if not (text.isdecimal() and MIN_WORKERS <= int(text) < MAX_PARTIES):
        raise typer.BadParameter(f"must be {MIN_WORKERS} to {MAX_PARTIES - 1} workers (got {text!r})")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_slow(text: str) -> float:
    """How many times as slow one worker is. Raises TandemError."""
    if not 1 <= (value := _number(text)) <= 100:
        raise TandemError(f"--slow must be a number from 1 to 100, such as 4 (got {text!r}).")
    return value


def parse_temperature(text: str) -> float:
    """At least 0. Raises TandemError."""
    if not 0 <= (value := _number(text)) < math.inf:
        raise TandemError(f"A temperature must be a number of at least 0 (got {text!r}), such as 0 or 1.")
    return value


def parse_floors(text: str) -> tuple[float, float] | None:
    """Least decode times in seconds, device and cloud; None: as fast as the machine. Raises TandemError."""
    if text == NO_FLOORS:
        return None
    times_s = [_number(part) for part in text.split(",")]
    if len(times_s) != 2 or not all(0 <= each_s <= 10 for each_s in times_s):
        raise TandemError(
            "--min-decode-time must be the device's and the cloud's in seconds, such as 0.06,0.025, "
            f"or `{NO_FLOORS}` (got {text!r})."
        )
    return times_s[0], times_s[1]


def parse_rtt(text: str) -> float:
    """Seconds. Raises TandemError."""
    return Shape(rtt_s=parse_duration(text)).rtt_s


def parse_bits(text: str) -> float | None:
    """Bits per second; None: no limit. Raises TandemError."""
    return Shape(rate_bits_per_s=parse_rate(text)).rate_bits_per_s


def _some(parse: Callable[[str], T], texts: Sequence[str] | None) -> tuple[T, ...]:
    return tuple(parse(text) for text in texts or ())


Name = Annotated[
    str,
    typer.Argument(
        metavar="SUITE", parser=one_of(tuple(SUITES)), help=f"one of {', '.join(SUITES)}", show_default=False
    ),
]
Words = list[str] | None
Rtts = Annotated[
    Words, typer.Option("--rtt", metavar="T ...", help="injected round trips, such as 0 100ms 300ms")
]
Rates = Annotated[
    Words,
    typer.Option(
        "--rate", metavar="R ...", help="speculative: of the link, each way, such as 10kbit 1mbit unlimited"
    ),
]
Temperatures = Annotated[Words, typer.Option("--temperature", metavar="T ...", help="such as 0 1")]
Systems = Annotated[
    Words, typer.Option(metavar="NAME ...", help="such as CRCG/device Tandem/mirror, or pipelined")
]
Deployments = Annotated[
    Words,
    typer.Option(
        "--deployment",
        metavar="D ...",
        parser=one_of(DEPLOYMENTS),
        help="ray, a cluster of both parties, or join, a device that has joined a cloud by a link, one process each; "
        "several are measured in turns on each link (default: ray)",
    ),
]
MinDecodeTimes = Annotated[
    Words,
    typer.Option(
        "--min-decode-time",
        metavar="D,C ...",
        help="the least time that device and cloud, or server and worker, take per token, in seconds, or none "
        "(default: 0.06,0.025; speculative and federated 0.015,0.027)",
    ),
]
ModelPair = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="M",
        parser=one_of(("configured", "half", "close")),
        help="configured; half: two random models of 50,000 tokens that accept half of each other's drafts (latency); "
        "close: two that mostly agree and write 48 tokens (speculative). Default: the settings' own, and half in the "
        "full grid of latency; close for speculative",
    ),
]
Workers = Annotated[
    list[int] | None,
    typer.Option(
        "--workers", metavar="N ...", parser=parse_workers, help="federated: how many vote (default: 2 and 4)"
    ),
]
Slow = Annotated[
    Words,
    typer.Option(
        "--slow",
        metavar="X ...",
        help="federated: the last worker's passes take X times as long (default: 1)",
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="take medians over N runs (default: latency and ttft 5, speculative 3, federated 2)",
    ),
]
NumQuestions = Annotated[
    int | None,
    typer.Option(
        "--questions",
        metavar="N",
        min=1,
        help=f"questions about the parties' documents per run (default: {QUESTIONS})",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="where the files go (default: bench/SUITE); cells measured there are kept"
    ),
]
Smoke = Annotated[bool, typer.Option("--smoke", help="one run of one question at 100 ms")]
Within = Annotated[str | None, typer.Option(hidden=True)]  # the network, up already


@with_options(*MODELS)
def bench(
    context: typer.Context,
    name: Name,
    rtts: Rtts = None,
    rates: Rates = None,
    temperatures: Temperatures = None,
    systems: Systems = None,
    deployments: Deployments = None,
    min_decode_times: MinDecodeTimes = None,
    models: ModelPair = None,
    workers: Workers = None,
    slow: Slow = None,
    runs: Runs = None,
    questions: NumQuestions = None,
    out: Out = None,
    smoke: Smoke = False,
    within: Within = None,
    *,
    settings: SettingsOptions,
) -> int:
    """Measure over the test network (as root): DRAGON's figures (latency, ttft), speculative or federated decoding.

    Without options the suite's full grid.
    """
    suite, log = SUITES[name], StageLog()
    special = {
        "rate": rates,
        "temperature": temperatures,
        "deployment": deployments,
        "models": models,
        "workers": workers,
        "slow": slow,
    }
    check_options(suite, [option for option, value in special.items() if value], models)
    axes = Axes(
        rtts_s=_some(parse_rtt, rtts),
        rates=_some(parse_bits, rates),
        temperatures=_some(parse_temperature, temperatures),
        floors=_some(parse_floors, min_decode_times),
        workers=tuple(workers or ()),
        slow=_some(parse_slow, slow),
        systems=tuple(systems or ()),
        models=cast("Models | None", models),
    )
    config = suite.configure(settings.load())
    cells = suite.cells(axes, cast("Sequence[Deployment]", deployments or ()), is_smoke=smoke)
    plan = make_plan(suite, cells, config, runs=runs, num_questions=questions, is_smoke=smoke)
    folder = outputs.check_folder("--out", out or f"bench/{suite.name}", (*FILES, *suite.pictures))
    if within is None:
        return run_inside(context, log)
    return measure(suite, NetLab(within), config, plan, folder, log)


def check_options(suite: Suite, named: Sequence[str], models: str | None) -> None:
    """Raise a usage error for an option of another suite."""
    for option in named:
        if option not in suite.takes:
            takers = [other.name for other in SUITES.values() if option in other.takes]
            raise typer.BadParameter(f"--{option} is for the suite {' or '.join(takers)}; remove it")
    if models is not None and models not in suite.axes:
        raise typer.BadParameter(f"must be {' or '.join(suite.axes)} (got {models!r})", param_hint="--models")


def make_plan(
    suite: Suite,
    cells: Sequence[CellPlan],
    config: Config,
    *,
    runs: int | None,
    num_questions: int | None,
    is_smoke: bool,
) -> Plan:
    """The cells, runs and questions of a benchmark. Raises TandemError."""
    from tandem_lab.quality.questions import question_texts

    questions = question_texts(None, config)
    if num_questions is not None and num_questions > len(questions):
        raise TandemError(
            f"There are {len(questions)} questions about these documents, but --questions asks for {num_questions}; "
            "ask for fewer."
        )
    count = 1 if is_smoke else num_questions or min(QUESTIONS, len(questions))
    return plan_of(config, cells, questions, count, 1 if is_smoke else runs or suite.runs)


def run_inside(context: typer.Context, log: StageLog) -> int:
    """This command again in the device's host of a network of its own, with `--within NAME`. Raises TandemError."""
    from tandem_lab.netlab.inside import inside
    from tandem_lab.netlab.packets import check_dpkt

    tools.require()
    check_dpkt()
    for program in ("ping", "taskset", "tcpdump"):
        tools.which(program)
    lab = NetLab(f"bench-{os.getpid()}")
    log(f"network: {lab.name}")
    return inside(lab, [*context.find_root().obj, "--within", lab.name])


# ---- in the device's host ----------------------------------------------------------------------------------------


def calibration_of(suite: Suite, plan: Plan) -> Plan:
    """What is measured first, without a delay, for the predictions of these cells."""
    settings = {
        replace(cell.setting, rtt_s=0.0): None for cell in plan.cells if cell.setting.floors_s is not None
    }
    return replace(plan, cells=tuple(CellPlan(setting=each, systems=suite.calibration) for each in settings))


def measure(suite: Suite, lab: NetLab, config: Config, plan: Plan, folder: Path, log: StageLog) -> int:
    """Predict, measure what is missing, write. Raises TandemError.

    Of network and cluster nothing is left in any case, of what was measured every cell.
    """
    from tandem_lab.bench.models import configs_of
    from tandem_lab.bench.runner import Bench

    with configs_of(plan, config) as configs:
        predictors: dict[str, Any] = {
            group: suite.predict(own, plan.questions) for group, own in configs.items()
        }
        run = partial(
            Bench, lab, configs, folder=folder, predictors=predictors, say=log, warm_up=suite.warm_up
        )
        if suite.calibration:
            for cell in run(plan=calibration_of(suite, plan)).run():
                log(predictors[cell.setting.group].calibrate(cell))
        cells = run(plan=plan).run()
    return write_report(suite, cells, config, folder, log)


def write_report(suite: Suite, cells: Sequence[Cell], config: Config, folder: Path, log: StageLog) -> int:
    """Print the table and write all files. Raises TandemError."""
    outputs.write_cells(folder, suite.text_of(cells), suite.values_of(cells), config)
    suite.draw(suite, cells, folder)
    log(f"files: {', '.join(str(folder / name) for name in (*FILES, *suite.pictures))}")
    return 0
