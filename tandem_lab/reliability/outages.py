"""Cut the link at a random moment of an answer, or kill a process, and look at what the user gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from tandem_lab.reliability.bench import POLICIES, Bench, Trial, Watched, pick
from tandem_lab.reliability.proxy import Cut

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
    """SIGKILL of the cloud at a random token; it is started again once the answer has ended."""
    for _ in range(num_kills):
        question, seed, whole = pick(bench, random)
        at = random.randrange(1, max(2, len(whole) - 1))

        def break_it(step: int, at: int = at) -> None:
            if step == at:
                bench.cloud.kill()

        watched = bench.ask(question, seed, break_it)
        start_s = time.monotonic()
        bench.cloud.restart()
        ready_s = time.monotonic()
        yield _row(watched, whole) | {
            "at": at,
            "started_s": ready_s - start_s,
            "rejoined_s": bench.ask_until_joined(),
        }


def kill_devices(bench: Bench, num_kills: int, random: Random) -> Iterator[dict[str, Any]]:
    """SIGKILL of the device at a random token; whoever asks gets one sentence, and asks the next process."""
    for _ in range(num_kills):
        question, seed, whole = pick(bench, random)
        at = random.randrange(1, max(2, len(whole) - 1))

        def break_it(step: int, at: int = at) -> None:
            if step == at:
                bench.device.kill()

        watched = bench.ask(question, seed, break_it)
        time.sleep(STARTED_AGAIN_S)
        start_s = time.monotonic()
        bench.device.restart()
        ready_s = time.monotonic()
        bench.attach()
        yield _row(watched, whole) | {
            "at": at,
            "started_s": ready_s - start_s,
            "rejoined_s": bench.ask_until_joined(),
        }


def _row(watched: Watched, whole: list[int]) -> dict[str, Any]:
    return {
        "is_right": watched.matches(whole),
        "num_tokens": len(watched.tokens),
        "num_whole": len(whole),
        "degraded_from": watched.degraded_from,
        "gap_s": watched.gap_s,
        "error": watched.error,
    }
