"""`tandem fuzz`: many seeded runs of the protocol over faulty links, or one of them again with all its events."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from tandem.cli.bar import Bar
from tandem.cli.terminal import plural, print_json

if TYPE_CHECKING:
    from tandem.lab.simulation.fuzz import FuzzFailure, Report


def run(args: Namespace) -> int:
    """Plays the runs; 1 if one of them broke an invariant."""
    return _many(args) if args.seed is None else _one(args.seed)


def _one(seed: int) -> int:
    """One run, with its trace on stdout."""
    from tandem.lab.simulation.event_log import EventLog
    from tandem.lab.simulation.fuzz import FuzzFailure, play_traced

    trace = EventLog(None)
    try:
        report = play_traced(seed, trace)
    except FuzzFailure as failure:
        print("\n".join(failure.trace))
        _print_failure(failure, is_told_how=False)
        return 1
    print("\n".join(trace.lines()))
    print(f"Seed {seed}: {_counted(report)}.", file=sys.stderr)
    return 0


def _many(args: Namespace) -> int:
    from tandem.lab.simulation.fuzz import fuzz

    start_s = time.monotonic()
    jobs = args.jobs or os.cpu_count() or 1
    report = fuzz(args.first, args.runs, jobs, Bar("fuzz", is_quiet=args.json))
    wall_s = time.monotonic() - start_s
    if args.json:
        print_json(_plain(report, args.first, wall_s))
    else:
        print(f"{_counted(report)}; {wall_s:.1f} s, {report.num_runs / wall_s:.0f} runs/s.")
    for failure in report.failures:
        _print_failure(failure)
    return 1 if report.failures else 0


def _print_failure(failure: FuzzFailure, *, is_told_how: bool = True) -> None:
    print(f"tandem: {failure}", file=sys.stderr)
    if is_told_how:
        print("\n".join(failure.trace[-20:]), file=sys.stderr)
        print(f"Replay it with: tandem fuzz --seed {failure.seed}", file=sys.stderr)


def _counted(report: Report) -> str:
    counts = [f"{count} {name}" for name, count in sorted(report.counts.items()) if count]
    head = [
        plural(report.num_runs, "run"),
        f"{report.num_tokens} tokens committed",
        f"{len(report.failures)} failed",
    ]
    return ", ".join(head + counts)


def _plain(report: Report, first: int, wall_s: float) -> dict[str, Any]:
    return {
        "first": first,
        "runs": report.num_runs,
        "tokens": report.num_tokens,
        "counts": dict(sorted(report.counts.items())),
        "failures": [{"seed": each.seed, "what": each.what} for each in report.failures],
        "wall_s": round(wall_s, 1),
    }
