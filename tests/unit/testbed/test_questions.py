"""Files of questions, good and bad."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.errors import QueryError
from tandem.testbed.questions import questions_of


def test_bundled() -> None:
    assert questions_of(None)[0] == "Which game should Mira try?"


def test_lines_and_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "q"
    file.write_text('One?\n\n {"question": " Two? ", "answer": "x"}\n', "utf-8")
    assert questions_of(file) == ["One?", "Two?"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds at least one, but"),
        (" \n\n", "holds none; write one a line."),
        ('One?\n{"question": }\n', 'q, line 2: a JSON line is an object with the field "question"'),
        ('{"answer": "x"}', "q, line 1: a JSON line is an object"),
        ('{"question": 3}', "a text that is not empty, but this one is '{\"question\": 3}'; correct it."),
        ('{"question": " "}', "q, line 1"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "q"
    file.write_text(text, "utf-8")
    with pytest.raises(QueryError, match=re.escape(sentence)):
        questions_of(file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="cannot be read"):
        questions_of(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"caf\xe9?")
    with pytest.raises(QueryError, match="cannot be read"):
        questions_of(tmp_path / "latin")
