"""The questions of a run: those that come with Tandem, or a file's.

A file holds one question a line, or one JSON object a line with the field "question". Knows files only.
"""

from __future__ import annotations

import json
from pathlib import Path

from tandem.corpora.bundle import read_questions
from tandem.errors import QueryError


def questions_of(path: Path | None) -> list[str]:
    """The questions in a file, or the bundled ones. Raises QueryError with file and line."""
    if path is None:
        return [each.question for each in read_questions()]
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(
            f"Questions stand in a text file, one a line, but {str(path)!r} cannot be read: {error}"
        ) from None
    found = [
        _question(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise QueryError(
            f"A file of questions holds at least one, but {str(path)!r} holds none; write one a line."
        )
    return found


def _question(line: str, where: str) -> str:
    """A plain line is the question itself."""
    if not line.lstrip().startswith("{"):
        return line.strip()
    try:
        question = json.loads(line).get("question")
    except ValueError:
        question = None
    if not isinstance(question, str) or not question.strip():
        raise QueryError(
            f'{where}: a JSON line is an object with the field "question", a text that is not empty, '
            f"but this one is {line.strip()[:80]!r}; correct it."
        )
    return question.strip()
