"""How long do many questions take side by side, against one after the other? And a single `tandem ask`, cold and warm?

The bundled models and documents, device and cloud on this machine. The same questions with the same seeds go through
`query`, one at a time, and through `batch`; then `tandem ask` is timed as a process of its own that starts a cluster
(cold), and so is one more question in a process that holds one (warm).

Prediction, printed first: one at a time leaves a core idle whenever a party waits for the other, so with two cores
`batch` takes at least half as long as that and at most as long; the answers are the same, since an answer depends on
its question and seed alone.

Expected run time: 2 minutes on two idle cores; `--smoke` 1 minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, summary
from tandem import Config, Tandem

SEED = 7
COLD_RUNS = 2


def questions(number: int) -> list[str]:
    """The bundled questions, over and over."""
    from tandem_lab.quality.questions import question_texts

    bundled = question_texts(None, Config())
    return [bundled[index % len(bundled)] for index in range(number)]


def one_at_a_time(tandem: Tandem, asked: Sequence[str]) -> tuple[list[str], list[float]]:
    """Texts, and seconds of each."""
    texts, seconds = [], []
    for question in asked:
        start_s = time.monotonic()
        texts.append(tandem.query(question, seed=SEED).text)
        seconds.append(time.monotonic() - start_s)
    return texts, seconds


def side_by_side(tandem: Tandem, asked: Sequence[str], concurrency: int) -> tuple[list[str], float]:
    """Texts in the order of the questions, and seconds of all."""
    start_s = time.monotonic()
    items = list(tandem.batch(asked, concurrency=concurrency, seed=SEED))
    elapsed_s = time.monotonic() - start_s
    return [item.result().text for item in sorted(items, key=lambda item: item.index)], elapsed_s


def cold_ask(question: str) -> float:
    """Seconds of a whole `tandem ask`, with the start and the end of its cluster."""
    start_s = time.monotonic()
    command = [sys.executable, "-m", "tandem", "ask", "--quiet", question]
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - start_s


def main() -> None:
    """Prediction, times, ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="few questions")
    arguments = parser.parse_args()
    asked, levels = questions(6 if arguments.smoke else 50), (4,) if arguments.smoke else (2, 4, 8, 16)
    print("prediction: side by side takes 0.5 to 1 of the time of one at a time; the same answers")
    with Tandem.launch(Config()) as tandem:
        list(
            tandem.batch(asked[:20])
        )  # documents' caches are stored, as in a cluster that has run for a while
        texts, seconds = one_at_a_time(tandem, asked)
        print(
            f"one at a time: {sum(seconds):.1f} s for {len(asked)}, {summary(seconds)['p50']:.2f} s each (median)"
        )
        ratios = {}
        for concurrency in levels:
            together, elapsed_s = side_by_side(tandem, asked, concurrency)
            ratios[concurrency] = elapsed_s / sum(seconds)
            same = sum(first == second for first, second in zip(texts, together, strict=True))
            print(
                f"{concurrency:2} at once: {elapsed_s:.1f} s, {ratios[concurrency]:.2f} of the time, "
                f"{same} of {len(asked)} answers the same"
            )
    cold_s = [cold_ask(asked[0]) for _ in range(1 if arguments.smoke else COLD_RUNS)]
    print(f"tandem ask: cold {min(cold_s):.1f} s, warm {summary(seconds)['p50']:.2f} s")
    finish(
        {
            "num_questions": len(asked),
            "one_at_a_time_s": sum(seconds),
            "warm_s": summary(seconds),
            "ratio": ratios,
            "cold_s": cold_s,
        }
    )


if __name__ == "__main__":
    main()
