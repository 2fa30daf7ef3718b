"""Cut the link at a random moment of an answer, or kill a process, and look at what the user gets.

A soak mixes cuts and kills with random cancellations, and asks what two processes hold in the end. Killed is another
device of the same cloud, in the middle of an answer of its own, so that both processes that are watched live on.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from tandem_lab.reliability.bench import POLICIES, Bench, Trial, Watched, pick, with_another_device
from tandem_lab.reliability.processes import Child
from tandem_lab.reliability.proxy import Cut

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


CUTS: tuple[Cut, ...] = ("stall", "reset")
STARTED_AGAIN_S = 0.2
"""Between the end of a device that was killed and its start."""


def cut_often(bench: Trial, num_cuts: int, cut_s: float, random: Random) -> Iterator[dict[str, Any]]:
    """One row per cut: what became of the answer, the gap in its stream, and how soon the parties were together again.

    Under `wait` that is the time from the moment when the link is back to the answer's next token. Where the answer
    has ended by then, as it has under `continue` and where its last drafts had come before the cut, it is the time to
    the first token of the next question, which waits for its cloud. What that takes without a cut is measured, too.
    """
    for number in range(num_cuts):
        policy, how = POLICIES[number % 2], CUTS[number // 2 % 2]
        question, seed, whole = pick(bench, random)
        at = random.randrange(1, max(2, len(whole) - 1))
        healed_s: list[float] = []

        def heal(healed_s: list[float] = healed_s) -> None:
            bench.link.heal()
            healed_s.append(time.monotonic())

        timer = threading.Timer(cut_s, heal)

        def break_it(step: int, at: int = at, how: Cut = how, timer: threading.Timer = timer) -> None:
            if step == at:
                bench.link.cut(how)
                timer.start()

        watched = bench.ask(question, seed, break_it, policy=policy)
        timer.join()
        came_s = [moment for moment in watched.came_s if moment > healed_s[0]] if policy == "wait" else []
        if not came_s:
            came_s = bench.ask(bench.questions[0], 0, policy="wait").came_s
        rejoined_s = came_s[0] - healed_s[0]
        undisturbed = bench.ask(bench.questions[0], 0, policy="wait")
        yield _row(watched, whole) | {
            "policy": policy,
            "how": how,
            "at": at,
            "rejoined_s": rejoined_s,
            "undisturbed_first_token_s": undisturbed.came_s[0] - undisturbed.asked_s,
            "is_whole_again": undisturbed.matches(bench.whole_answer(bench.questions[0], 0)),
        }


def kill_clouds(bench: Bench, num_kills: int, random: Random) -> Iterator[dict[str, Any]]:
    """SIGKILL of the cloud at a random token; it is started again after the answer, or at once, by turns of policy."""
    for number in range(num_kills):
        yield _kill_once(bench, bench.cloud, random, POLICIES[number % 2])


def kill_devices(bench: Bench, num_kills: int, random: Random) -> Iterator[dict[str, Any]]:
    """SIGKILL of the device at a random token; whoever asks gets one sentence, and asks the next process."""
    for _ in range(num_kills):
        yield _kill_once(bench, bench.device, random)


def _kill_once(bench: Bench, victim: Child, random: Random, policy: str = "continue") -> dict[str, Any]:
    question, seed, whole = pick(bench, random)
    at = random.randrange(1, max(2, len(whole) - 1))
    started_s = list[float]()

    def start_again() -> None:
        start_s = time.monotonic()
        victim.restart()
        started_s.append(time.monotonic() - start_s)

    def break_it(step: int) -> None:
        if step == at:
            victim.kill()
            if policy == "wait":
                start_again()

    watched = bench.ask(question, seed, break_it, policy=policy)
    if victim is bench.device:
        time.sleep(STARTED_AGAIN_S)
    if not started_s:
        start_again()
    if victim is bench.device:
        bench.attach()
    times = {"at": at, "policy": policy, "started_s": started_s[0], "rejoined_s": bench.ask_until_joined()}
    return _row(watched, whole) | times


def _row(watched: Watched, whole: list[int]) -> dict[str, Any]:
    return {
        "is_right": watched.matches(whole),
        "num_tokens": len(watched.tokens),
        "num_whole": len(whole),
        "degraded_from": watched.degraded_from,
        "gap_s": watched.gap_s,
        "error": watched.error,
    }
