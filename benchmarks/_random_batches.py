"""Random batches of sessions on a runner, to see whether a row gets the same bits whatever else is computed with it.

A batch: one to eight sessions with documents of unequal length, some of them the same, that are fed an answer in random
blocks, together and alone, with rollbacks and abandoned passes, in caches of random capacity. Rows drawn from it are
computed again, each alone, in one go or token by token.

A walk: one session goes forwards and backwards along a long answer, over several turns of one question.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tandem.engine.port import Logits, Preempted, Row
from tandem.engine.session import Runner

Bits = NDArray[np.uint32]
MAX_SESSIONS, MAX_BLOCK, COMPARED = 8, 8, 3
WALK_LENGTH, WALK_STEPS = 150, 40


def bits_of(logits: Logits) -> Bits:
    """Those of float32 numbers, in an array of the same shape."""
    array = logits if isinstance(logits, np.ndarray) else logits.cpu()
    return np.asarray(array).copy().view(np.uint32)


class StaleAt:
    """is_stale that turns true at its `call`-th question."""

    def __init__(self, call: int) -> None:
        self._call, self.num_calls = call, 0

    def __call__(self) -> bool:
        self.num_calls += 1
        return self.num_calls > self._call


def compute(runner: Runner, rows: list[Row], *feeds: tuple[tuple[int, ...], int]) -> list[Bits]:
    """Logits [rows, wanted, vocab] after each feed (tokens, wanted) of a session of its own."""
    runner.open("alone", rows, 0, num_scored=0, is_later_turn=False)
    try:
        return [
            bits_of(runner.forward({"alone": tokens}, {"alone": num_logits}, None)[0])
            for tokens, num_logits in feeds
        ]
    finally:
        runner.close("alone")


def compute_alone(runner: Runner, row: Row, answer: tuple[int, ...], num_logits: int, block: int) -> Bits:
    """Logits [num_logits, vocab] of a row, fed in blocks, of which nothing was stored."""
    ends = [*range(len(answer) - num_logits + 1, len(answer) + 1)]
    blocks = [ends[at : at + block] for at in range(0, len(ends), block)]
    feeds = ((answer[: some[-1]], len(some)) for some in blocks)
    store, runner.caches.store = runner.caches.store, None
    try:
        return np.concatenate([logits[0] for logits in compute(runner, [row], *feeds)])
    finally:
        runner.caches.store = store


class _Case:
    """One session of a batch."""

    def __init__(
        self, draw: random.Random, runner: Runner, documents: list[tuple[int, ...]], num_rows: int
    ) -> None:
        question = draw_tokens(draw, runner, draw.randint(1, 12))
        longest = draw.choice([6, 40, 40, 300]) if num_rows <= 4 else 40
        for _ in range(num_rows):
            documents.append(
                draw.choice(documents)
                if documents and draw.random() < 0.3
                else draw_tokens(draw, runner, draw.randint(0, longest))
            )
        self.rows = [Row(document, question) for document in documents[-num_rows:]]
        self.answer = draw_tokens(draw, runner, draw.randint(1, 2 * MAX_BLOCK))

    def feed(self, draw: random.Random, runner: Runner) -> tuple[tuple[int, ...], int]:
        """Part of the answer, or something that will be rolled back; logits of some positions."""
        tokens = self.answer[: draw.randint(0, len(self.answer))]
        if draw.random() < 0.4:
            tokens += draw_tokens(draw, runner, draw.randint(1, MAX_BLOCK))
        return tokens, draw.randint(1, min(MAX_BLOCK, len(tokens) + 1))


def draw_tokens(draw: random.Random, runner: Runner, num_tokens: int) -> tuple[int, ...]:
    """Any of the vocabulary."""
    return tuple(draw.randrange(runner.vocab_size) for _ in range(num_tokens))


def play_batch(runner: Runner, draw: random.Random, max_rows: int) -> Iterator[tuple[Bits, Bits]]:
    """Logits [wanted, vocab] of some rows of a random batch, and of each alone."""
    cases: dict[str, _Case] = {}
    documents: list[tuple[int, ...]] = []
    left = draw.randint(1, max_rows)
    while left and len(cases) < MAX_SESSIONS:
        num_rows = draw.randint(1, min(left, draw.choice([1, 4, 16, max_rows])))
        left -= num_rows
        cases[name := str(len(cases))] = case = _Case(draw, runner, documents, num_rows)
        runner.open(name, case.rows, draw.choice([0, 0, 64, 200]), num_scored=0, is_later_turn=False)
    try:
        for _ in range(draw.randint(0, 5)):
            some = draw.sample(sorted(cases), draw.randint(1, len(cases)))
            feeds = {name: cases[name].feed(draw, runner) for name in some}
            answers = {name: tokens for name, (tokens, _) in feeds.items()}
            num_logits = {name: number for name, (_, number) in feeds.items()}
            with suppress(Preempted):
                runner.forward(
                    answers, num_logits, StaleAt(draw.randint(0, 9)) if draw.random() < 0.3 else None
                )
            runner.sessions[some[0]].crop(draw.randint(0, 2 * MAX_BLOCK))
        answers = {name: case.answer for name, case in cases.items()}
        num_logits = {
            name: draw.randint(1, min(MAX_BLOCK, len(answer) + 1)) for name, answer in answers.items()
        }
        computed = [bits_of(logits) for logits in runner.forward(answers, num_logits, None)]
    finally:
        for name in cases:
            runner.close(name)
    for _ in range(COMPARED):
        session = draw.randrange(len(cases))
        case = cases[str(session)]
        row = draw.randrange(len(case.rows))
        block = draw.choice([1, MAX_BLOCK])
        alone = compute_alone(runner, case.rows[row], case.answer, num_logits[str(session)], block)
        yield computed[session][row], alone


def walk(runner: Runner, draw: random.Random) -> Iterator[tuple[Bits, Bits]]:
    """Logits [wanted, vocab] of the first of two rows along an answer, and of that row alone, only ever forwards."""
    question = draw_tokens(draw, runner, draw.randint(1, 150))
    rows = [Row(draw_tokens(draw, runner, draw.randint(0, 200)), question) for _ in range(2)]
    answer = draw_tokens(draw, runner, WALK_LENGTH)
    alone = compute_alone(runner, rows[0], answer, WALK_LENGTH + 1, 1)
    runner.open("walk", rows, draw.choice([0, 200]), num_scored=0, is_later_turn=False)
    try:
        at = 0
        for _ in range(WALK_STEPS):
            if draw.random() < 0.05:
                runner.close("walk")
                runner.open("walk", rows, 0, num_scored=0, is_later_turn=True)
            if draw.random() < 0.3:
                detour = (*answer[:at], *draw_tokens(draw, runner, draw.randint(1, MAX_BLOCK)))
                with suppress(Preempted):
                    runner.forward({"walk": detour}, {}, StaleAt(draw.randint(0, 9)))
            at += draw.choice([1, 1, 2, 5, 20, -1, -1, -2, -5, -20, -100])
            at = max(0, min(at, WALK_LENGTH))
            if draw.random() < 0.5:
                runner.sessions["walk"].crop(at)
            num_logits = draw.randint(1, min(MAX_BLOCK, at + 1))
            (logits,) = runner.forward({"walk": answer[:at]}, {"walk": num_logits}, None)
            yield bits_of(logits)[0], alone[at + 1 - num_logits : at + 1]
    finally:
        runner.close("walk")


def count_differences(runner: Runner, num_batches: int, seed: int, max_rows: int = 64) -> tuple[int, int]:
    """Of so many random batches: rows compared, rows that differ in any bit."""
    draw = random.Random(seed)
    return _count(pair for _ in range(num_batches) for pair in play_batch(runner, draw, max_rows))


def count_differences_along(runner: Runner, num_walks: int, seed: int) -> tuple[int, int]:
    """Of so many walks: places compared, places that differ in any bit."""
    draw = random.Random(seed)
    return _count(pair for _ in range(num_walks) for pair in walk(runner, draw))


def _count(pairs: Iterable[tuple[Bits, Bits]]) -> tuple[int, int]:
    """All, and those that are not equal."""
    are_equal = [np.array_equal(found, alone) for found, alone in pairs]
    return len(are_equal), are_equal.count(False)
