"""Reads questions: with their answers for an evaluation, or their texts alone for a run.

A file is UTF-8, a question a line: {"question": text, "answers": [text, ...]}, where `answer` with one text may stand
for `answers`, as in the bundled questions. Where texts alone are wanted, a line may also be the bare question, and
needs no answers. Knows files, not models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import EvaluationError
from tandem.lab.training import bundle


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask, and every text that counts as right."""

    text: str
    answers: tuple[str, ...]  # at least one


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in order. Raises EvaluationError that names file, line and field."""
    return [_question(line, where) for line, where in _lines(path)]


def question_texts(path: Path | None) -> list[str]:
    """The questions of a file without their answers, or the bundled ones. Raises EvaluationError as above."""
    if path is None:
        return [each.question for each in bundle.read_bundled_questions()]
    return [_text(_entry(line, where), where) if line[0] == "{" else line for line, where in _lines(path)]


def _lines(path: Path) -> list[tuple[str, str]]:
    """The lines that hold anything, stripped, each with its place; at least one."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise EvaluationError(
            f"Questions are read from a text file, but {path} cannot be read ({error.strerror}); check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise EvaluationError(
            f"Questions must be UTF-8 text, but {path} is not (byte {error.start}); save it as UTF-8."
        ) from None
    found = [(line.strip(), f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise EvaluationError(
            f'A file of questions must hold at least one line, but {path} holds none; add {{"question": "...", '
            '"answers": ["..."]}.'
        )
    return found


def _question(line: str, where: str) -> Question:
    entry = _entry(line, where)
    answers = entry.get("answers", entry.get("answer"))
    listed = [answers] if isinstance(answers, str) else answers
    text = _text(entry, where)
    if not (
        isinstance(listed, list) and listed and all(isinstance(each, str) and each.strip() for each in listed)
    ):
        raise EvaluationError(
            f'{where}: "answers" must be a list of texts that are not empty, it is {answers!r}; correct it.'
        )
    return Question(text, tuple(listed))


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise EvaluationError(
            f"{where}: each line must be a JSON object, this is not ({error}); correct it."
        ) from None
    if not isinstance(entry, dict):
        raise EvaluationError(
            f"{where}: each line must be a JSON object, this is of type {type(entry).__name__}; correct it."
        )
    return entry


def _text(entry: dict[str, Any], where: str) -> str:
    text = entry.get("question")
    if not (isinstance(text, str) and text.strip()):
        raise EvaluationError(
            f'{where}: "question" must be a text that is not empty, it is {text!r}; correct it.'
        )
    return text.strip()
