"""What does a site cost: processes, memory, and the time until it can be asked?

Three shapes, each in fresh processes, in turn: the device's site alone in one process (what a person's laptop would
run), device and cloud inline in one process, and both on two local Ray nodes. Memory is resident memory, summed over
the processes of the shape, and the proportional share (PSS), in which pages that processes share count once; CPU time
is theirs as well, user and system, and depends least on what else the machine does. Time counts from the start of the
Python process to the moment when a question can be asked, and to the end of the first answer; caches of files and of
documents are warm, since a first run is not counted. Target for the device's site: 1 process, 600 MB, 6 s. Prediction:
1 process, 500 MB (PyTorch and transformers 350, two models and an index 150) and 5 s (3 s of imports); two sites 550
MB, since they share all libraries. On Ray: 28 processes, each with 100 MB and more.

Expected run time: 4 minutes; `--smoke` 1 minute, without Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser

ROOT = Path(__file__).parent.parent
SHAPES = ("site", "inline", "ray")
"""The device's site alone; both parties in one process; both on Ray."""
PREDICTED = {
    "site": {"processes": 1, "rss_mb": 500, "ready_s": 5},
    "inline": {"processes": 1, "rss_mb": 550, "ready_s": 6},
}
TARGET = {"processes": 1, "rss_mb": 600, "ready_s": 6}
QUESTION = "Which game should Mira try?"


def measure(shape: str, began_s: float) -> dict[str, Any]:
    """Start a shape in this process, ask once, and say what it took. began_s: Unix time of the process's start."""
    if shape == "site":
        return asyncio.run(_measure_site(began_s))
    from tandem import Tandem

    with Tandem.launch(runtime=shape) as tandem:  # type: ignore[arg-type]
        ready_s = time.time() - began_s
        idle = _footprint()
        text = tandem.query(QUESTION, seed=7).text
        return _result(ready_s, began_s, idle, text)


async def _measure_site(began_s: float) -> dict[str, Any]:
    from tandem.client.ask import Asker
    from tandem.client.request import build_spec
    from tandem.config.schema import Config
    from tandem.events import collect
    from tandem.sites.startup import LocalSite, start_actors
    from tandem.transport.memory import MemoryNetwork

    config = Config()
    site = LocalSite.create("device", config, MemoryNetwork().new_plane, asyncio.get_running_loop())
    described = await start_actors({site.party: site.actors}, config, lambda line: None)
    ready_s = time.time() - began_s
    idle = _footprint()
    spec = build_spec(config, described, QUESTION, only="device", seed=7)
    asker = Asker({site.party: site}, str)
    events = [event async for event in asker.ask(spec, 60.0, at_once=True)]
    result = _result(ready_s, began_s, idle, collect(events, 7).text)
    await site.stop()
    return result


def _result(ready_s: float, began_s: float, idle: dict[str, float], text: str) -> dict[str, Any]:
    return {
        "ready_s": ready_s,
        "answered_s": time.time() - began_s,
        **idle,
        **{f"{name}_after_an_answer": value for name, value in _footprint().items()},
        "text": text,
    }


def _footprint() -> dict[str, float]:
    """Of this process and all that it started."""
    used = []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            memory, times = process.memory_full_info(), process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        used.append((memory.rss, memory.pss, times.user + times.system))
    rss, pss, cpu_s = (sum(values) for values in zip(*used, strict=True))
    return {"processes": len(used), "rss_mb": rss / 1e6, "pss_mb": pss / 1e6, "cpu_s": cpu_s}


def _run(shape: str) -> dict[str, Any]:
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, __file__, "--child", shape, "--began", repr(time.time())]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Every shape in turn, several times."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each shape, besides a first one")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--smoke", action="store_true", help="one run of each shape without Ray")
    parser.add_argument("--child", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.child, arguments.began)))
        return
    shapes = ("site", "inline") if arguments.smoke else tuple(arguments.shapes)
    num_runs = 1 if arguments.smoke else arguments.runs
    print(f"prediction: {PREDICTED}; target of the device's site: {TARGET}")
    runs: dict[str, list[dict[str, Any]]] = {shape: [] for shape in shapes}
    for number in range(num_runs + 1):
        for shape in shapes:
            result = _run(shape)
            if number:
                runs[shape].append(result | {"load": os.getloadavg()[0]})
    medians = {shape: _medians(results) for shape, results in runs.items()}
    for shape, values in medians.items():
        print(f"{shape:6} " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    finish({"predicted": PREDICTED, "target": TARGET, "medians": medians, "runs": runs})


def _medians(results: list[dict[str, Any]]) -> dict[str, float]:
    numbers = [name for name, value in results[0].items() if not isinstance(value, str)]
    return {name: statistics.median(result[name] for result in results) for name in numbers}


if __name__ == "__main__":
    main()
