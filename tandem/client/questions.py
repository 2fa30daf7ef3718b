"""Reads lists of questions: one per line, or JSON lines with the field "question"."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tandem.errors import QueryError

STDIN = "-"
"""Stands for standard input in the place of a file."""


def check_question(question: object) -> None:
    """Raises QueryError for what is no text, or an empty one."""
    if not isinstance(question, str):
        raise QueryError(f"A question is a text, but it is {question!r:.100}; give a str.", option="question")
    if not question.strip():
        raise QueryError(f"The question is empty (got {question!r}); ask something.", option="question")


def read_texts(file: str) -> list[str]:
    """The questions of a UTF-8 file, or of standard input, in order; empty lines are left out. Raises QueryError."""
    lines = split(sys.stdin.read(), "standard input") if file == STDIN else read_lines(Path(file))
    return [text_of(entry_of(line, where), where) if line[0] == "{" else line for line, where in lines]


def read_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a file that hold anything, as `split` gives them. Raises QueryError."""
    try:
        return split(path.expanduser().read_text("utf-8"), str(path))
    except OSError as error:
        raise QueryError(
            f"Questions are read from a text file, but {path} cannot be read ({error.strerror}); check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise QueryError(
            f"Questions must be UTF-8 text, but {path} is not (byte {error.start}); save it as UTF-8."
        ) from None


def split(text: str, name: str) -> list[tuple[str, str]]:
    """The lines that hold anything, stripped, each with its place; at least one. Raises QueryError."""
    lines = [
        (line.strip(), f"{name}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
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
        held = ", ".join(map(repr, entry)) or "nothing"
        raise QueryError(f'{where}: an object must hold "question", this one holds {held:.100}; rename it.')
    text = entry["question"]
    if not (isinstance(text, str) and text.strip()):
        raise QueryError(f'{where}: "question" must be a text that is not empty, it is {text!r}; correct it.')
    return text.strip()
