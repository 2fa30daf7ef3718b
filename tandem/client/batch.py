"""Many questions at once: answered side by side, each yielded as it finishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tandem.errors import ConfigError, QueryError
from tandem.events import Answer

BatchProgress: TypeAlias = Callable[[int, int], object]
"""Called with the number of questions that are finished, and of all."""
SESSIONS_PER_QUESTION = 2
"""A finished query may still be closing at the other party while the next one opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """What became of one question of a batch: an answer or an error."""

    index: int  # position among the questions, from 0
    question: str
    answer: Answer | None = None
    error: Exception | None = None

    def result(self) -> Answer:
        """The answer. Raises the error where there is none."""
        if self.answer is not None:
            return self.answer
        raise self.error or QueryError(f"Question {self.index} has no answer.")


def list_questions(questions: Iterable[str]) -> list[str]:
    """The questions of a batch. Raises QueryError for a single text or what cannot be iterated."""
    if isinstance(questions, str) or not isinstance(questions, Iterable):
        raise QueryError(
            f"The questions of a batch are a list of texts, but they are {questions!r:.100}; give a list."
        )
    return list(questions)


def bounded(concurrency: int, max_sessions: int) -> int:
    """How many questions are open at once, so that no party refuses one. Raises ConfigError."""
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigError(
            f"concurrency must be a whole number of at least 1, but it is {concurrency!r}; correct it."
        )
    return min(concurrency, max(1, max_sessions // SESSIONS_PER_QUESTION))


async def answer_all(
    questions: Sequence[str],
    ask: Callable[[str], Awaitable[Answer]],
    concurrency: int,
    progress: BatchProgress | None = None,
) -> AsyncGenerator[BatchItem, None]:
    """An item per question as it finishes; leaving early cancels those that are open, and none is asked any more."""
    waiting = iter(enumerate(questions))  # shared by all workers
    finished: asyncio.Queue[BatchItem] = asyncio.Queue()
    workers = [
        asyncio.create_task(_work(waiting, ask, finished)) for _ in range(min(concurrency, len(questions)))
    ]
    try:
        for num_finished in range(1, len(questions) + 1):
            item = await finished.get()
            if progress is not None:
                progress(num_finished, len(questions))
            yield item
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _work(
    waiting: Iterator[tuple[int, str]],
    ask: Callable[[str], Awaitable[Answer]],
    finished: asyncio.Queue[BatchItem],
) -> None:
    """Ask one question after the other; one that fails does not keep the others from being asked."""
    for index, question in waiting:
        try:
            item = BatchItem(index=index, question=question, answer=await ask(question))
        except Exception as error:
            item = BatchItem(index=index, question=question, error=error)
        finished.put_nowait(item)
