"""`tandem ask -`, `--file` and `--cite`: many questions, and marks behind what documents said."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.citations import Citation
from tandem.cli.answer import CitedText
from tandem.client.ask import find_support
from tandem.events import CitationEvent, DoneEvent, Event, Source, SourcesEvent, TokenEvent
from tandem.topology import Party

from .conftest import FakeTandem, Run, statistics, token

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


GAMES, WALKS = Citation(documents=(0.9, 0.0), others=0.1), Citation(documents=(0.0, 0.8), others=0.2)
NOBODY = Citation(documents=(0.1, 0.2), others=0.5)
TEXT = ((" Mira", None), (" likes", GAMES), (" games", GAMES), (".", NOBODY), (" She", NOBODY), (" walks", WALKS),
        (" alone", NOBODY), (".", NOBODY))  # fmt: skip
QUESTION = "Which game should Mira try?"


def source(number: int, title: str) -> Source:
    return Source(
        party=Party.DEVICE,
        id=f"d{number}",
        title=title,
        score=0.5,
        text="Mira will try a game.",
        page=number or None,
    )


def events(*, is_late: bool = False) -> list[Event]:
    own = (source(3, "notes/games.pdf"), source(0, "notes/walks.txt"))
    found: list[Event] = [SourcesEvent(party=Party.DEVICE, sources=own, retrieve_s=0.1, prefill_s=0.1)]
    for step, (text, citation) in enumerate(TEXT):
        if not is_late:
            found.append(replace(token(step, text), citation=citation))
            continue
        found.append(token(step, text))
        if step and (before := TEXT[step - 1][1]) is not None:
            found.append(CitationEvent(step=step - 1, citation=before))
    return [*found, DoneEvent(reason="eos", statistics=statistics())]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_with_marks_and_what_they_name(is_late: bool, tandem: FakeTandem, run: Run) -> None:
    tandem.script = events(is_late=is_late)
    shown = run("ask", QUESTION, "--cite", "--quiet", code=0)
    assert shown.out == (
        "Mira likes games [1]. She walks [2] alone.\n\nCited\n  [1] notes/games.pdf, page 3\n  [2] notes/walks.txt\n"
    )
    assert shown.err == ""


def test_where_nothing_supports_an_answer_nothing_is_cited_and_what_was_read_is_named(
    tandem: FakeTandem, run: Run
) -> None:
    """A mark of a sentence that was shown before that was known keeps its number."""
    said = [*events()[:5], *(replace(token(step, text), citation=GAMES)
            for step, text in enumerate((" It", " costs", " 99"), 4))]  # fmt: skip
    support = find_support(QUESTION, said)
    tandem.script = [*said, DoneEvent(reason="eos", statistics=statistics(), support=support)]
    shown = run("ask", QUESTION, "--cite", "--quiet", code=0)
    nothing = (
        "\n\nCited\n  nothing: none of your documents says this\n  [1] was read: notes/games.pdf, page 3\n"
    )
    assert shown.out == f"Mira likes games [1]. It costs 99{nothing}"
    shown = json.loads(run("ask", QUESTION, "--json", code=0).out)
    assert shown["citations"] == []
    assert shown["support"] == {
        "is_supported": False, "missing": ["99"], "tokens": [None, True, True, None, False, False, False]
    }  # fmt: skip


def test_json_has_places_in_the_text_and_no_marks(tandem: FakeTandem, run: Run) -> None:
    for is_late in (False, True):
        tandem.script = events(is_late=is_late)
        shown = json.loads(run("ask", QUESTION, "--cite", "--json", code=0).out)
        assert shown["answer"] == "Mira likes games. She walks alone."
        first, second = shown["citations"]
        assert shown["answer"][first["start"] : first["end"]] == "likes games"
        assert shown["answer"][second["start"] : second["end"]] == "walks"
        assert (first["title"], first["page"]) == ("notes/games.pdf", 3)
        assert (first["id"], first["source"]) == ("d3", 0)
        assert (first["share"], second["share"]) == (0.9, 0.8)
        assert shown["tokens"][1]["citation"] == {"documents": [0.9, 0.0], "others": 0.1}


def test_a_sentence_comes_as_soon_as_the_next_one_begins(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Event] = []
    text, shown = CitedText(seen, QUESTION), []
    for event in events(is_late=True):
        seen.append(event)
        if isinstance(event, TokenEvent):
            text.commit(event.step, event.text)
            shown.append(capsys.readouterr().out)
    text.end()
    assert shown == ["", "", "", "", "Mira likes games [1]. ", "", "", ""]
    assert capsys.readouterr().out == "She walks [2] alone.\n"
