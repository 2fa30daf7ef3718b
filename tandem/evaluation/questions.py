"""Reads questions with their answers from a jsonl file: {"question": text, "answers": [text, ...]} a line.

`answer` with one text may stand for `answers`, as in the bundled questions. Knows files, not models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import EvaluationError


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask, and every text that counts as right."""

    text: str
    answers: tuple[str, ...]  # at least one


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in order. Raises EvaluationError that names file, line and field."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise EvaluationError(
            f"Questions are read from a jsonl file, but {path} cannot be read ({error.strerror}); check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise EvaluationError(
            f"Questions must be UTF-8 text, but {path} is not (byte {error.start}); save it as UTF-8."
        ) from None
    questions = [
        _question(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not questions:
        raise EvaluationError(
            f'A file of questions must hold at least one line, but {path} holds none; add {{"question": "...", '
            '"answers": ["..."]}.'
        )
    return questions


def _question(line: str, where: str) -> Question:
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
    text, answers = entry.get("question"), entry.get("answers", entry.get("answer"))
    if not (isinstance(text, str) and text.strip()):
        raise EvaluationError(
            f'{where}: "question" must be a text that is not empty, it is {text!r}; correct it.'
        )
    listed = [answers] if isinstance(answers, str) else answers
    if not (
        isinstance(listed, list) and listed and all(isinstance(each, str) and each.strip() for each in listed)
    ):
        raise EvaluationError(
            f'{where}: "answers" must be a list of texts that are not empty, it is {answers!r}; correct it.'
        )
    return Question(text, tuple(listed))
