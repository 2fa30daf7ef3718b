"""`tandem lab fuzz`: many seeded runs of the protocol over faulty links, or one of them again with all its events."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.options import MAX_SEED, AsJson
from tandem.cli.output import plural, print_json, progress_bar
from tandem.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from tandem_lab.simulation.fuzz import FuzzFailure, Report

NUM_RUNS = 1000
FEDERATED = tuple(f"federated-{count}" for count in range(2, 9))
ROLES = ("dual", "solo", "speculative", *FEDERATED, *(f"{name}-lottery" for name in ("dual", *FEDERATED)))
HOSTILE = (
    "hostile-mirror",
    "hostile-device",
    "hostile-cloud",
    "hostile-greedy",
    "hostile-asker",
    "hostile-speculative-cloud",
    "hostile-speculative-device",
    "hostile-worker",
    "hostile-server",
    *(f"hostile-{place}-lottery" for place in ("mirror", "device", "asker", "worker", "server")),
)
"""As `tandem_lab.simulation.hostile.CASES`, which is imported late."""

Runs = Annotated[int | None, typer.Option(metavar="N", min=1, help=f"how many (default: {NUM_RUNS})")]
First = Annotated[
    int | None,
    typer.Option(metavar="SEED", min=0, max=MAX_SEED, help="seed of the first run (default: 0)"),
]
Jobs = Annotated[int | None, typer.Option(metavar="J", min=1, help="processes (default: one per CPU)")]
Roles = Annotated[
    str | None,
    typer.Option(
        metavar="ROLES",
        help=f"who drafts, votes and decides: {', '.join(ROLES)}; or who is hostile: {', '.join(HOSTILE)} "
        "(default: dual)",
    ),
]
OneSeed = Annotated[
    int | None,
    typer.Option(metavar="S", min=0, max=MAX_SEED, help="replay one run and print its events"),
]


def fuzz(
    runs: Runs = None,
    first: First = None,
    jobs: Jobs = None,
    seed: OneSeed = None,
    roles: Roles = None,
    as_json: AsJson = False,
) -> int:
    """Test the protocol: seeded runs over links that lose, hosts that stall or crash, or peers that forge frames.

    Exit code 1 if a run broke an invariant.
    """
    chosen = _find_roles(roles or ROLES[0])
    if seed is not None:
        return _play_one(seed, chosen)
    return _play_many(runs or NUM_RUNS, first or 0, jobs, chosen, as_json=as_json)


def _find_roles(name: str) -> str:
    if name not in (*ROLES, *HOSTILE):
        raise ConfigError(f"There are no roles {name!r} to fuzz; {did_you_mean(name, (*ROLES, *HOSTILE))}")
    return name


def _play_one(seed: int, roles: str) -> int:
    """One run, with its trace on stdout."""
    from tandem_lab.simulation.event_log import EventLog
    from tandem_lab.simulation.fuzz import FuzzFailure, play

    trace = EventLog(None)
    try:
        report = play(seed, trace, roles=roles)
    except FuzzFailure as failure:
        print("\n".join(failure.trace))
        print(f"tandem: {failure}", file=sys.stderr)
        return 1
    print("\n".join(trace.lines()))
    print(f"Seed {seed}: {_summary(report)}.", file=sys.stderr)
    return 0


def _play_many(runs: int, first: int, jobs: int | None, roles: str, *, as_json: bool) -> int:
    from tandem_lab.simulation import fuzz as fuzzing

    start_s = time.monotonic()
    with progress_bar("fuzz", is_quiet=as_json) as advance:
        report = fuzzing.fuzz(first, runs, jobs or os.cpu_count() or 1, advance, roles=roles)
    wall_s = time.monotonic() - start_s
    if as_json:
        print_json(_as_dict(report, first, wall_s))
    else:
        print(f"{_summary(report)}; {wall_s:.1f} s, {report.num_runs / wall_s:.0f} runs/s.")
    for failure in report.failures:
        _print_failure(failure, roles)
    return 1 if report.failures else 0


def _print_failure(failure: FuzzFailure, roles: str) -> None:
    print(f"tandem: {failure}", file=sys.stderr)
    print("\n".join(failure.trace[-20:]), file=sys.stderr)
    option = "" if roles == ROLES[0] else f" --roles {roles}"
    print(f"Replay it with: tandem lab fuzz --seed {failure.seed}{option}", file=sys.stderr)


def _summary(report: Report) -> str:
    counts = [f"{count} {name}" for name, count in sorted(report.counts.items()) if count]
    head = [
        plural(report.num_runs, "run"),
        f"{report.num_tokens} tokens committed",
        f"{len(report.failures)} failed",
    ]
    return ", ".join(head + counts)


def _as_dict(report: Report, first: int, wall_s: float) -> dict[str, Any]:
    return {
        "first": first,
        "runs": report.num_runs,
        "tokens": report.num_tokens,
        "counts": dict(sorted(report.counts.items())),
        "failures": [{"seed": failure.seed, "what": failure.what} for failure in report.failures],
        "wall_s": round(wall_s, 1),
    }
