"""Many questions at once: read from a file, answered side by side, each yielded as it finishes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tandem.errors import ConfigError, QueryError
from tandem.events import Answer

STDIN = "-"
"""Stands for standard input in the place of a file."""
BatchProgress: TypeAlias = Callable[[int, int], object]
"""Called with the number of questions that are finished, and of all."""
SESSIONS_PER_QUESTION = 2
"""A finished query may still be closing at the other party while the next one opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """The outcome of one question of a batch: an answer or an error."""

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
    """The number of questions that are open at once, so that no party refuses one. Raises ConfigError."""
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


# ---- lists of questions: one per line, or JSON lines with the field "question" ----------------------------------


def check_question(question: object) -> None:
    """Raises QueryError for what is no text, or an empty one."""
    if not isinstance(question, str):
        raise QueryError(f"A question is a text, but it is {question!r:.100}; give a str.", option="question")
    if not question.strip():
        raise QueryError(f"The question is empty (got {question!r:.100}); ask something.", option="question")


def read_texts(file: str) -> list[str]:
    """The questions of a UTF-8 file, or of standard input, in order; empty lines are left out. Raises QueryError."""
    lines = _lines_of(_read_stdin(), "standard input") if file == STDIN else read_lines(Path(file))
    return [text_of(entry_of(line, where), where) if line[0] == "{" else line for line, where in lines]


def read_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a file that hold anything, as `split` gives them. Raises QueryError."""
    try:
        return _lines_of(path.expanduser().read_bytes(), str(path))
    except OSError as error:
        raise QueryError(
            f"Questions are read from a text file, but {path} cannot be read ({error.strerror}); check the path."
        ) from None


def _read_stdin() -> bytes:
    """Standard input as it is, whatever encoding this process has for it."""
    stream = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode() if stream is None else stream.read()


def _lines_of(data: bytes, name: str) -> list[tuple[str, str]]:
    """Split UTF-8 bytes, with or without a byte-order mark, into lines. Raises QueryError."""
    try:
        return split(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        raise QueryError(
            f"Questions must be UTF-8 text, but {name} is not (byte {error.start}); save it as UTF-8."
        ) from None


def split(text: str, name: str) -> list[tuple[str, str]]:
    """The lines that hold anything, stripped, each with its place; at least one. Raises QueryError."""
    lines = [
        (line.strip(), f"{name}, line {number}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    if not lines:
        raise QueryError(
            f'A list of questions must hold at least one line, but {name} holds none; add {{"question": "..."}}, '
            "or the bare text."
        )
    return lines


def entry_of(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line. Raises QueryError."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise QueryError(
            f"{where}: each line must be a JSON object, this is not ({error}); correct it."
        ) from None
    if not isinstance(entry, dict):
        raise QueryError(
            f"{where}: each line must be a JSON object, this is of type {type(entry).__name__}; correct it."
        )
    return entry


def text_of(entry: dict[str, Any], where: str) -> str:
    """The question of a JSON object. Raises QueryError."""
    if "question" not in entry:
        names = ", ".join(map(repr, entry)) or "nothing"
        raise QueryError(f'{where}: an object must hold "question", this one holds {names:.100}; rename it.')
    text = entry["question"]
    if not (isinstance(text, str) and text.strip()):
        raise QueryError(f'{where}: "question" must be a text that is not empty, it is {text!r}; correct it.')
    return text.strip()
