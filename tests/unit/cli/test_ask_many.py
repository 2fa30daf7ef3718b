"""`tandem ask -` and `tandem ask --file` against a scripted Tandem."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from .conftest import FakeTandem, Run

MANY = "Which game?\n\n  Which walk?  \nboom\n"
ANSWER = "Mira likes puzzle games."


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions on standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MANY.encode())))


@pytest.mark.usefixtures("piped")
def test_questions_from_a_pipe_are_answered_in_their_order(tandem: FakeTandem, run: Run) -> None:
    shown = run("ask", "-", "--seed", "3", "--only", "device", "--filter", "device:source=a.md", code=1)
    assert shown.out.splitlines() == [
        "1. Which game?",
        ANSWER,
        "   from notes/mira.txt, 2 documents of the cloud",
        "",
        "2. Which walk?",
        ANSWER,
        "   from notes/mira.txt, 2 documents of the cloud",
        "",
        "3. boom",
        "(failed: The cloud was lost.)",
    ]
    assert shown.err.splitlines()[1:] == ["tandem: 1 of 3 questions failed; the first: The cloud was lost."]
    assert tandem.asked == [
        ("3 questions, 8 at once", {"seed": 3, "only": "device", "device_filter": {"source": ["a.md"]}})
    ]
    assert tandem.num_closed == 1


@pytest.mark.usefixtures("piped")
def test_json_lines_are_strict_objects_in_the_same_order(tandem: FakeTandem, run: Run) -> None:
    shown = run("ask", "-", "--json", "--quiet", "--concurrency", "2", code=1)

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in shown.out.splitlines()]
    assert [(line["index"], line["question"], line["answer"]) for line in lines] == [
        (0, "Which game?", ANSWER),
        (1, "Which walk?", ANSWER),
        (2, "boom", None),
    ]
    assert lines[0]["error"] is lines[0]["degraded"] is None
    assert lines[0]["sources"][0]["title"] == "notes/mira.txt"
    assert (lines[2]["error"], lines[2]["seed"]) == ("The cloud was lost.", None)
    assert tandem.asked[0][0] == "3 questions, 2 at once"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "Questions are read from a text file, but q.txt cannot be read (No such file or directory)"),
        ("\n", "A list of questions must hold at least one line, but q.txt holds none"),
        ("One?\n{", "q.txt, line 2: each line must be a JSON object, this is not ("),
        ('{"query": "One?"}', """an object must hold "question", this one holds 'query'; rename it."""),
    ],
)
def test_wrong_files_are_found_before_anything_is_started(
    tandem: FakeTandem, run: Run, content: str | None, sentence: str
) -> None:
    if content is not None:
        Path("q.txt").write_text(content, "utf-8")
    shown = run("ask", "--file", "q.txt", code=1)
    assert shown.out == ""
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert tandem.started == []
