"""Hundreds of questions with random cancellations, cuts and kills: what two processes hold in the end.

Killed is another device of the same cloud, in the middle of an answer of its own, so that both processes that are
watched live on and their memory can be compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tandem_lab.reliability.bench import Bench, pick, with_another_device
from tandem_lab.reliability.outages import CUTS, kill_devices

CANCELLED, CUT, KILLED = 0.15, 0.08, 0.02
"""Shares of the questions; for each that is killed, the other device asks one."""
MAX_CUT_S = 1.5
SETTLE_LIMIT_S = 90.0
"""A cloud frees the session of a device that vanished after 60 s."""


Progress = Callable[[Mapping[str, int], Mapping[str, Any]], None]
"""Called with the outcomes so far and what both processes hold now, after each question."""


def soak(bench: Bench, num_questions: int, random: Random, progress: Progress) -> dict[str, Any]:
    """Ask, cancel, cut and kill; what both processes hold after each question, and what is left in the end."""
    with with_another_device(bench, "neighbour") as other:
        return _soak(bench, other, num_questions, random, progress)


def _soak(
    bench: Bench, other: Bench, num_questions: int, random: Random, progress: Progress
) -> dict[str, Any]:
    samples: dict[str, list[dict[str, Any]]] = {"cloud": [], "device": []}
    outcomes = dict.fromkeys(("whole", "degraded", "cancelled", "cut", "killed", "wrong", "failed"), 0)
    for _ in range(num_questions):
        question, seed, whole = pick(bench, random)
        chance, at = random.random(), random.randrange(1, max(2, len(whole) - 1))
        if chance < CANCELLED:
            bench.ask_some(question, seed, at)
            outcomes["cancelled"] += 1
        elif chance > 1 - KILLED:
            (killed,) = kill_devices(other, 1, random)
            outcomes["killed"] += 1
            outcomes["wrong"] += not killed["is_right"]
        else:
            cut_s = random.uniform(0.2, MAX_CUT_S) if chance < CANCELLED + CUT else 0.0
            watched = bench.ask(question, seed, bench.cutter(at, random.choice(CUTS), cut_s))
            outcomes["cut"] += bool(cut_s)
            outcomes["wrong"] += not watched.matches(whole)
            outcomes["failed"] += bool(watched.error)
            outcomes["degraded" if watched.degraded_from is not None else "whole"] += 1
        for name, process in (("cloud", bench.cloud), ("device", bench.device)):
            samples[name].append(process.measure())
        progress(outcomes, {name: values[-1] for name, values in samples.items()})
    settled_s = settle(bench)
    left = {"cloud": bench.cloud.measure(), "device": bench.device.measure()}
    return {
        "outcomes": outcomes,
        "settled_s": settled_s,
        "left": left,
        "growth": {name: growth(values) for name, values in samples.items()},
        "files_first": {name: values[0]["files"] for name, values in samples.items()},
        "rss_mb": {
            name: [round(value["rss_bytes"] / 1e6, 1) for value in values[:: max(1, len(values) // 20)]]
            for name, values in samples.items()
        },
    }


def settle(bench: Bench, limit_s: float = SETTLE_LIMIT_S) -> float:
    """Wait until neither process holds a session; how long it took. Raises TimeoutError."""
    start_s = time.monotonic()
    while any(process.measure()["sessions"] for process in (bench.cloud, bench.device)):
        if time.monotonic() - start_s > limit_s:
            raise TimeoutError(f"Sessions are left after {limit_s:g} s.")
        time.sleep(0.5)
    return time.monotonic() - start_s


def growth(samples: Sequence[dict[str, Any]]) -> float:
    """Median memory of the last quarter as a share of the first quarter after the warm-up, which is a tenth."""
    values = [sample["rss_bytes"] for sample in samples[len(samples) // 10 :]]
    quarter = max(1, len(values) // 4)
    return float(statistics.median(values[-quarter:]) / statistics.median(values[:quarter]))
