"""What does a user get when the link is cut, a process is killed, or strangers come?

A cloud and a device as processes of their own, a relay between them that can be cut, and this process, which asks the
device. Subcommands, of which several share what they have started:

    outages   cut the link for --seconds at a random moment of an answer, --count times; two ways of cutting, and
              `link.on_peer_loss` "continue" and "wait" in turn
    kills     SIGKILL of the cloud at a random moment, and of the device, --count times each
    soak      --count questions with random cancellations, cuts, and kills of another device; what both processes hold
    hostile   --count connections of strangers in eleven ways, while a device asks; and clouds with a false certificate
    frames    --count changed frames through the parser, and through a live connection
    steps     cut the link or kill the cloud at a random time of an answer, --count times; all of the call are in steps

Predictions: no answer is wrong, ever; the gap in a stream is at most the deadline (1.5 s) and two decode steps under
`continue`; the parties are together again within 2 s of the link's return; memory stays within 5 %; every stranger is
counted; changed frames cost nothing but time.

Expected run time: outages 4 minutes for 50 cuts of 2.5 s; kills 12 minutes for 20 each; soak 5 minutes for 300;
hostile 2 minutes for 1,000; frames 3 minutes for 1,000,000; steps 10 minutes for 100. `--smoke`: a minute each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser, summary
from tandem.events import TokenEvent
from tandem_lab.reliability import hostile, malformed, outages
from tandem_lab.reliability.bench import Bench, Trial, pick, running

COUNTS = {"outages": 50, "kills": 20, "soak": 300, "hostile": 1000, "frames": 1_000_000, "steps": 100}
SMOKE = {"outages": 4, "kills": 1, "soak": 12, "hostile": 33, "frames": 20_000, "steps": 6}
PREDICTION = {
    "outages": "0 wrong, gap <= 1.5 s + 2 steps under continue, together again <= 2 s after the link's return",
    "kills": "0 wrong; a cloud's death costs 1.5 s and degrades the answer, or is waited for; a device's: one sentence",
    "soak": "0 wrong, last quarter of memory <= 1.05 x first, no session and no descriptor left",
    "hostile": "every stranger counted, pace within 10 % of the quiet one, memory and descriptors bounded",
    "frames": "nothing but ProtocolErrors, memory bounded, the other device's answer right",
    "steps": "0 wrong: the answer of all steps, or, where the device goes on alone, the plain one or its beginning",
}
STEPS_S = 1.5
"""About how long an answer in steps of the toys takes."""
PRINTED_EVERY = 25
"""Questions of a soak between two lines that say how it goes."""


def run_outages(bench: Trial, count: int, seconds: float, random: Random) -> dict[str, Any]:
    """Rows and their summary."""
    rows = _print_rows(outages.cut_often(bench, count, seconds, random))
    result: dict[str, Any] = {"cut_s": seconds, "wrong": sum(not row["is_right"] for row in rows)}
    for policy in outages.POLICIES:
        own = [row for row in rows if row["policy"] == policy]
        result[policy] = {
            "gap_s": summary([row["gap_s"] for row in own]) | {"max": max(row["gap_s"] for row in own)},
            "rejoined_s": summary([row["rejoined_s"] for row in own])
            | {"max": max(row["rejoined_s"] for row in own)},
            "degraded": sum(row["degraded_from"] is not None for row in own),
            "errors": sorted({row["error"] for row in own} - {""}),
        }
    result["undisturbed_first_token_s"] = summary([row["undisturbed_first_token_s"] for row in rows])
    result["whole_again"] = all(row["is_whole_again"] for row in rows)
    return result


def run_kills(bench: Bench, count: int, random: Random) -> dict[str, Any]:
    """Clouds first, then devices."""
    results: dict[str, Any] = {}
    kills: tuple[tuple[str, Callable[[Bench, int, Random], Iterator[dict[str, Any]]]], ...] = (
        ("cloud", outages.kill_clouds),
        ("device", outages.kill_devices),
    )
    for name, kill in kills:
        rows = _print_rows(kill(bench, count, random))
        for policy in dict.fromkeys(row["policy"] for row in rows):
            own = [row for row in rows if row["policy"] == policy]
            results[f"{name}, {policy}"] = {
                "wrong": sum(not row["is_right"] for row in own),
                "degraded": sum(row["degraded_from"] is not None for row in own),
                "whole": sum(row["degraded_from"] is None and not row["error"] for row in own),
                "errors": dict(Counter(row["error"] for row in own)),
                "gap_s": summary([row["gap_s"] for row in own]),
                "started_s": summary([row["started_s"] for row in own]),
                "rejoined_s": summary([row["rejoined_s"] for row in own]),
            }
    results["settled_s"] = outages.settle(bench)
    return results


def run_hostile(bench: Bench, count: int, random: Random) -> dict[str, Any]:
    """Strangers at the cloud, then false clouds for the device."""
    link = bench.new_link("impersonated")
    strangers = hostile.Strangers(link, bench.revoked_link(), random)
    crowd = hostile.crowd(bench, count, random, strangers)
    with tempfile.TemporaryDirectory() as folder:
        false_clouds = hostile.false_clouds(link, max(6, count // 10), Path(folder))
    return {"crowd": crowd, "false_clouds": false_clouds}


def run_frames(bench: Bench, count: int, random: Random) -> dict[str, Any]:
    """The parser, then a connection."""
    frames = malformed.record_frames()
    parsed = malformed.parse(frames, count, random)
    print(json.dumps(parsed), flush=True)
    link = replace(bench.new_link("mad"), port=bench.cloud.hello["port"])
    return {"parsed": parsed, "sent": malformed.send(bench, link, frames, count, random)}


def break_at_times(bench: Bench, count: int, seconds: float, random: Random) -> Iterator[dict[str, Any]]:
    """One row for each answer in steps that is disturbed."""
    ways = (partial(bench.link.cut, "stall"), partial(bench.link.cut, "reset"), bench.cloud.kill)
    for number in range(count):
        policy, way = outages.POLICIES[number % 2], number // 2 % len(ways)

        def break_it(way: int = way) -> None:
            ways[way]()
            time.sleep(seconds)
            (bench.cloud.restart if way == 2 else bench.link.heal)()

        question, seed, whole = pick(bench, random)
        timer = threading.Timer(random.uniform(0, STEPS_S), break_it)
        timer.start()
        watched = bench.ask(question, seed, policy=policy)
        timer.join()
        is_right, is_whole = watched.matches(whole), watched.tokens == whole and watched.degraded_from is None
        if policy == "continue" and not is_right:  # a step has failed
            events = bench.clients["wait"].stream(question, seed=seed, temperature=1.0, steps="never")
            is_right = watched.matches([event.token for event in events if isinstance(event, TokenEvent)])
        yield {
            "policy": policy, "way": way, "is_right": is_right, "is_whole": is_whole, "error": watched.error
        }  # fmt: skip


def _print_rows(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    seen = []
    for row in rows:
        seen.append(row | {"load": os.getloadavg()[0]})
        print(json.dumps(seen[-1]), flush=True)
    return seen


def _print_sometimes(outcomes: Mapping[str, int], held: Mapping[str, Any]) -> None:
    num_asked = sum(outcomes[kind] for kind in ("whole", "degraded", "cancelled", "killed"))
    if num_asked % PRINTED_EVERY == 0:
        sizes = {name: round(values["rss_bytes"] / 1e6, 1) for name, values in held.items()}
        print(json.dumps({"asked": num_asked, "outcomes": outcomes, "rss_mb": sizes}), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one subcommand, or several after each other."""
    parser = new_parser(__doc__)
    parser.add_argument("what", nargs="+", choices=COUNTS)
    parser.add_argument("--count", type=int, nargs="+", help=f"one for each subcommand; default: {COUNTS}")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a cut")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args(argv)
    defaults = SMOKE if arguments.smoke else COUNTS
    counts = arguments.count or [defaults[what] for what in arguments.what]
    if len(counts) != len(arguments.what):
        parser.error(
            f"--count takes {len(arguments.what)} numbers, one for each subcommand (got {len(counts)})"
        )
    for what in arguments.what:
        print(f"prediction of {what}: {PREDICTION[what]}", flush=True)
    results = {}
    with running(["decoding.steps=always"] if "steps" in arguments.what else []) as bench:
        for what, count in zip(arguments.what, counts, strict=True):
            result = run(what, bench, count, arguments.seconds, Random(arguments.seed))
            results[what] = {"count": count, "load": os.getloadavg()[0]} | result
            print(json.dumps({what: results[what]}), flush=True)
    finish({"seed": arguments.seed, "results": results})


def run(what: str, bench: Bench, count: int, seconds: float, random: Random) -> dict[str, Any]:
    """One subcommand."""
    match what:
        case "outages":
            return run_outages(bench, count, seconds, random)
        case "kills":
            return run_kills(bench, count, random)
        case "soak":
            return outages.soak(bench, count, random, _print_sometimes)
        case "hostile":
            return run_hostile(bench, count, random)
        case "steps":
            rows = _print_rows(break_at_times(bench, count, seconds, random))
            return {name: sum(row[name] for row in rows) for name in ("is_right", "is_whole")}
        case _:
            return run_frames(bench, count, random)


if __name__ == "__main__":
    main()
