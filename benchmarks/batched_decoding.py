"""How much faster are many questions at once, decoded in one pass, than one after the other?

The bundled model with rows of about 100 tokens, 4 rows per question (the device) and 16 (the cloud), 1 to 64 questions
at once; a step gives every question one token. `batched` is one forward for all; `in turn` is the same engine, one
question per forward; `growing` is the fallback, which is how every model was decoded before: a growing cache, one
question per pass. The three take turns, and processor time is measured, so that other work on the machine counts
little. First, one question's pass with 1, 2, 4, 5 and 8 rows.

Prediction, from the cost of a pass by rows (1 row 1.2 ms, 4 rows 1.7, 16 rows 4.7, 80 rows 17, 320 rows 53; one idle
core): 2.5 times as many tokens per second with 4 rows a question, 1.8 times with 16. Target: 1.7 times at 16
questions. At 1 to 5 rows batched is not slower than growing by more than its spread.

Expected run time: 2 minutes on an idle core; `--smoke` 15 s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks._common import finish, summary
from benchmarks._study import parser
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine, Feed
from tandem.engine.prompt import Prompt

QUESTIONS, ROWS = (1, 4, 16, 64), (4, 16)
FEW_ROWS = (1, 2, 4, 5, 8)
NUM_TOKENS, VOCAB = 90, 1600
TARGET = 1.7


def open_sessions(engine: Engine, num_sessions: int, num_rows: int) -> list[str]:
    """Sessions of random prompts, computed."""
    draw = np.random.default_rng(0)
    names = [str(number) for number in range(num_sessions)]
    for name in names:
        rows = tuple(tuple(map(int, draw.integers(3, VOCAB, NUM_TOKENS))) for _ in range(num_rows))
        prompt = Prompt(rows, (5, 6, 7), tuple(range(num_rows)), (), ())
        engine.sessions[name] = engine.make_session(prompt, 64, is_stored=False)
    for name in names:
        engine.next_logits(name, [])
    return names


class Case:
    """So many questions with so many rows, in both engines."""

    def __init__(self, batched: Engine, growing: Engine, num_sessions: int, num_rows: int) -> None:
        self._batched, self._growing = batched, growing
        self._names = open_sessions(batched, num_sessions, num_rows)
        open_sessions(growing, num_sessions, num_rows)
        self._tokens = {"batched": [7], "in turn": [7], "growing": [7]}

    def close(self) -> None:
        """Free the sessions."""
        for engine in (self._batched, self._growing):
            for name in self._names:
                engine.close(name)

    def step_s(self, how: str) -> float:
        """Seconds of one token for every question."""
        tokens = self._tokens[how]
        tokens.append(len(tokens) + 10)
        engine = self._growing if how == "growing" else self._batched
        if how != "growing":  # both use the same sessions: feed exactly one token
            for name in self._names:
                engine.next_logits(name, tokens[:-1])
        started_s = time.process_time()
        if how == "batched":
            engine.forward([Feed(name, tokens) for name in self._names])
        else:
            for name in self._names:
                engine.next_logits(name, tokens)
        return time.process_time() - started_s


def measure(make: Callable[[], Case], hows: tuple[str, ...], runs: int) -> dict[str, dict[str, float]]:
    """Seconds per step: median and quartiles, in turns."""
    case = make()
    turns = [{how: case.step_s(how) for how in hows} for _ in range(runs + 2)][2:]
    case.close()
    return {how: summary([turn[how] for turn in turns]) for how in hows}


def measure_few_rows(batched: Engine, growing: Engine, runs: int) -> dict[int, Any]:
    """One question with few rows, which batching cannot help."""
    few: dict[int, Any] = {}
    for num_rows in FEW_ROWS:
        few[num_rows] = measured = measure(
            lambda num_rows=num_rows: Case(batched, growing, 1, num_rows),  # type: ignore[misc]
            ("batched", "growing"),
            runs,
        )
        times = "  ".join(
            f"{how} {1e3 * seconds['p50']:.2f} [{1e3 * seconds['p25']:.2f}, {1e3 * seconds['p75']:.2f}] ms"
            for how, seconds in measured.items()
        )
        print(f"one pass of {num_rows} rows: {times}", flush=True)
    return few


def main() -> None:
    """Table of questions at once, then of few rows."""
    arguments = parser(__doc__).parse_args()
    print("prediction: 2.5 x the tokens per second with 4 rows, 1.8 x with 16; target 1.7 x at 16 questions")
    batched = Engine.load(str(WEIGHTS), num_threads=1)
    growing = Engine.load(str(WEIGHTS), num_threads=1, is_batched=False)
    questions, runs = ((1, 4), 5) if arguments.smoke else (QUESTIONS, 25)
    few = measure_few_rows(batched, growing, 10 if arguments.smoke else 50)
    table: dict[str, Any] = {}
    for num_rows in ROWS:
        for count in questions:
            measured = measure(
                lambda count=count, num_rows=num_rows: Case(batched, growing, count, num_rows),  # type: ignore[misc]
                ("batched", "in turn", "growing"),
                max(5, runs // max(1, count // 8)),
            )
            rates = {how: count / seconds["p50"] for how, seconds in measured.items()}
            table[f"{count} questions, {num_rows} rows"] = measured
            ratio = rates["batched"] / rates["growing"]
            print(
                f"{count:3} questions of {num_rows:2} rows: batched {rates['batched']:6.0f} tokens/s, in turn "
                f"{rates['in turn']:6.0f}, growing {rates['growing']:6.0f}: {ratio:.2f} x",
                flush=True,
            )
    finish({"steps_s": table, "few_rows_s": few, "target": TARGET})


if __name__ == "__main__":
    main()
