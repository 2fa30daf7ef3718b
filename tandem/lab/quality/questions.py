"""Reads questions: with their answers for an evaluation, or their texts alone for a run.

A file is UTF-8, a question a line: {"question": text, "answers": [text, ...]}, where `answer` with one text may stand
for `answers`, as in the bundled questions. Where texts alone are wanted, a line may also be the bare question, and
needs no answers. Knows files, not models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandem.errors import EvaluationError
from tandem.lab.training import bundle
from tandem.questions import entry_of, read_lines, read_texts, text_of


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask, and every text that counts as right."""

    text: str
    answers: tuple[str, ...]  # at least one


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in order. Raises TandemError that names file, line and field."""
    return [_question(line, where) for line, where in read_lines(path)]


def question_texts(path: Path | None) -> list[str]:
    """The questions of a file without their answers, or the bundled ones. Raises TandemError as above."""
    if path is None:
        return [each.question for each in bundle.read_bundled_questions()]
    return read_texts(str(path))


def _question(line: str, where: str) -> Question:
    entry = entry_of(line, where)
    answers = entry.get("answers", entry.get("answer"))
    listed = [answers] if isinstance(answers, str) else answers
    text = text_of(entry, where)
    if not (
        isinstance(listed, list) and listed and all(isinstance(each, str) and each.strip() for each in listed)
    ):
        raise EvaluationError(
            f'{where}: "answers" must be a list of texts that are not empty, it is {answers!r}; correct it.'
        )
    return Question(text, tuple(listed))
