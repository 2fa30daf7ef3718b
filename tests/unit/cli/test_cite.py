"""`tandem ask --cite`: marks behind what documents said, in an answer as it comes and in many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tandem.citations import Citation
from tandem.cli.answer import CitedText
from tandem.events import CitationEvent, DoneEvent, Event, Source, SourcesEvent, TokenEvent
from tandem.topology import Party

from .conftest import FakeTandem, Run, statistics, token

GAMES, WALKS = Citation(documents=(0.9, 0.0), others=0.1), Citation(documents=(0.0, 0.8), others=0.2)
NOBODY = Citation(documents=(0.1, 0.2), others=0.5)
TEXT = ((" Mira", None), (" likes", GAMES), (" games", GAMES), (".", NOBODY), (" She", NOBODY), (" walks", WALKS),
        (" alone", NOBODY), (".", NOBODY))  # fmt: skip
QUESTION = "Which game should Mira try?"


def source(number: int, title: str) -> Source:
    return Source(
        party=Party.DEVICE, id=f"d{number}", title=title, score=0.5, text="...", page=number or None
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
    text, shown = CitedText(seen), []
    for event in events(is_late=True):
        seen.append(event)
        if isinstance(event, TokenEvent):
            text.commit(event.step, event.text)
            shown.append(capsys.readouterr().out)
    text.end()
    assert shown == ["", "", "", "", "Mira likes games [1]. ", "", "", ""]
    assert capsys.readouterr().out == "She walks [2] alone.\n"
