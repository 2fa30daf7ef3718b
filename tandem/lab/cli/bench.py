"""`tandem bench latency` and `tandem bench ttft`: DRAGON's Figures 6 and 7 over the test network.

Two processes of one command line, as for `tandem replay`: the outer one looks at everything that a person can get
wrong, builds the network and removes it; the inner one runs in the device's host of it and measures.
"""

from __future__ import annotations

import json
import math
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli import outputs
from tandem.cli.terminal import Progress, plain, settings
from tandem.config import Config
from tandem.errors import TandemError
from tandem.lab.environment import describe_environment
from tandem.lab.latency.plan import (
    FLOORS_S,
    LATENCY_TOKENS,
    RTTS_S,
    TEMPERATURES,
    TTFT_TOKENS,
    CellPlan,
    Plan,
    full_cells,
    select_cells,
)
from tandem.lab.latency.records import DataPlane
from tandem.lab.latency.systems import SYSTEMS, select_systems
from tandem.lab.netlab import NetLab, tools
from tandem.lab.netlab.shape import Shape, parse_duration

if TYPE_CHECKING:
    from tandem.lab.latency.records import Cell

NAMES = ("results.json", "table.txt", "latency.png", "ttft.png", "cells.jsonl")
RUNS, QUESTIONS = 5, 3
"""Three bundled answers have 42 tokens."""
SMOKE_SYSTEMS = ("CRCG/device", "CRCG/cloud", "DRCG/Text", "DRDG/TW", "Tandem/mirror")
SMOKE_RTT = "100ms"
NO_FLOORS = "none"
PLANES: list[DataPlane] = ["socket"]
"""Measured unless others are named."""


def latency(args: Namespace) -> int:
    """Time per token, with whole answers."""
    return _run(args, "latency", LATENCY_TOKENS)


def ttft(args: Namespace) -> int:
    """Time to first token: answers of two tokens."""
    return _run(args, "ttft", TTFT_TOKENS)


def _run(args: Namespace, action: str, max_new_tokens: int) -> int:
    """Raises TandemError; of network and cluster nothing is left in any case, of what was measured every cell."""
    progress = Progress()
    config = settings(args, (), progress)
    plan, folder = _plan(args, config, max_new_tokens), outputs.check_folder("--out", args.out, NAMES)
    if args.within is not None:
        return _measure(NetLab(args.within), config, plan, folder, progress)
    from tandem.lab.netlab.inside import inside
    from tandem.lab.netlab.pcap import check_dpkt

    tools.require()
    check_dpkt()
    for program in ("ping", "taskset", "tcpdump"):
        tools.which(program)
    lab = NetLab(f"bench-{os.getpid()}")
    progress(f"network: {lab.name}")
    return inside(lab, [*_again(args, action), "--within", lab.name])


# ---- what is to be measured --------------------------------------------------------------------------------------


def _plan(args: Namespace, config: Config, max_new_tokens: int) -> Plan:
    from tandem.lab.training.bundle import read_bundled_questions

    runs, num_questions = args.runs or RUNS, args.questions or QUESTIONS
    if args.smoke:
        runs, num_questions = 1, 1
    questions = [each.question for each in read_bundled_questions()]
    if num_questions > len(questions):
        raise TandemError(
            f"The bundled questions are {len(questions)}, but --questions asks for {num_questions}; ask for fewer."
        )
    return Plan(
        cells=_cells(args, max_new_tokens),
        runs=runs,
        questions=tuple(questions[:num_questions]),
        kv_store=(config.device.kv_store, config.cloud.kv_store),
        settings=sha256(repr(config).encode()).hexdigest()[:16],
    )


def _cells(args: Namespace, max_new_tokens: int) -> tuple[CellPlan, ...]:
    """The full grid, unless the command line names a part of one."""
    named = (args.rtt, args.temperature, args.systems, args.data_plane, args.floors)
    if not args.smoke and not any(named):
        return full_cells(max_new_tokens)
    default_rtts = [SMOKE_RTT] if args.smoke else [f"{1e3 * rtt_s:g}ms" for rtt_s in RTTS_S]
    default_temperatures = ["0"] if args.smoke else [f"{each:g}" for each in TEMPERATURES]
    names = args.systems or (SMOKE_SYSTEMS if args.smoke else [system.name for system in SYSTEMS])
    return select_cells(
        select_systems(names),
        [Shape(rtt_s=parse_duration(text)).rtt_s for text in args.rtt or default_rtts],
        [_temperature(text) for text in args.temperature or default_temperatures],
        args.data_plane or PLANES,
        [_floors(text) for text in args.floors] if args.floors else [FLOORS_S],
        max_new_tokens,
    )


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TandemError(f"A temperature is a number of at least 0, but it is {text!r}; give 0 or 1, say.")
    return value


def _floors(text: str) -> tuple[float, float] | None:
    """Least decode times in seconds, device and cloud."""
    if text == NO_FLOORS:
        return None
    try:
        device_s, cloud_s = (float(part) for part in text.split(","))
    except ValueError:
        device_s = cloud_s = math.nan
    if not (0 <= device_s <= 10 and 0 <= cloud_s <= 10):
        raise TandemError(
            f"Decode floors are the device's and the cloud's in seconds, such as {FLOORS_S[0]:g},{FLOORS_S[1]:g}, "
            f"or `{NO_FLOORS}`, but they are {text!r}; write them so."
        )
    return device_s, cloud_s


def _again(args: Namespace, action: str) -> list[str]:
    """The command line of the inner process."""
    lists = {
        "--rtt": args.rtt,
        "--temperature": args.temperature,
        "--systems": args.systems,
        "--data-plane": args.data_plane,
        "--floors": args.floors,
    }
    single = {
        "--runs": args.runs,
        "--questions": args.questions,
        "--out": args.out,
        "--config": args.config,
    }
    words = ["bench", action]
    for name, values in lists.items():
        words += [name, *values] if values else []
    for name, value in single.items():
        words += [] if value is None else [name, str(value)]
    return [*words, *(word for value in args.set for word in ("--set", value)), *["--smoke"] * args.smoke]


# ---- in the device's host ----------------------------------------------------------------------------------------


def _measure(lab: NetLab, config: Config, plan: Plan, folder: Path, progress: Progress) -> int:
    """Predicts, measures what is missing, writes."""
    from tandem.lab.latency.memoized import local_pair
    from tandem.lab.latency.predictions import Predictor
    from tandem.lab.latency.runner import Bench

    predictor = Predictor(lambda: local_pair(config), config, plan.questions)
    cells = Bench(lab, config, plan, folder, predictor, progress).run()
    return _report(cells, config, folder, progress)


def _report(cells: Sequence[Cell], config: Config, folder: Path, progress: Progress) -> int:
    from tandem.lab.latency.plot import FIRST, TOKEN, plot_latency
    from tandem.lab.latency.tables import text_of, values_of

    text = text_of(cells)
    print(text)
    outputs.write_text("--out", folder / "table.txt", text + "\n")
    results = {"cells": values_of(cells), "settings": asdict(config), "environment": describe_environment()}
    outputs.write_text("--out", folder / "results.json", json.dumps(plain(results), indent=1) + "\n")
    plot_latency(cells, folder / "latency.png", TOKEN)
    plot_latency(cells, folder / "ttft.png", FIRST)
    progress(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    return 0
