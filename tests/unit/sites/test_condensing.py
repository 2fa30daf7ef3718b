"""A question written from a conversation: by the home alone, the same each time, and seen by nothing but the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.actors.tally import listening_queue
from tandem.client import ask as condensing
from tandem.conversation import CONDENSED_CHARS, Message, ask_to_condense
from tandem.messages import LinkFrame, Open
from tandem.modes.spec import SessionSpec
from tandem_lab.simulation.specs import make_spec

QUESTION = "And what soup?"
HISTORY = [
    {"role": "user", "content": "Which walks does Mura like?"},
    {"role": "assistant", "content": "Mura likes forest walks."},
]
TURNS = tuple(Message(**turn) for turn in HISTORY)  # type: ignore[arg-type]
OPTIONS: dict[str, Any] = {"seed": 5, "max_new_tokens": 6, "on_peer_loss": "wait"}


@pytest.fixture(scope="module")
def frames() -> list[LinkFrame]:
    """What the device sends; a test clears it."""
    return []


@pytest.fixture(scope="module")
def tandem(frames: list[LinkFrame]) -> Iterator[Tandem]:
    classes: Any = {"draft_queue": listening_queue("device", lambda frame, encoded: frames.append(frame))}
    config = Config.load(None, ["retrieval.chat_query=condensed"])
    with Tandem.launch(config, runtime="inline", actor_classes=classes) as launched:
        yield launched


def opened(frames: list[LinkFrame]) -> SessionSpec:
    """What the cloud was asked, and that it saw no other query."""
    specs = {frame.body.spec for frame in frames if isinstance(frame.body, Open)}
    assert len({frame.session for frame in frames}) == 1
    (text,) = specs
    return SessionSpec.from_json(text)


@pytest.mark.parametrize("mode", ["dual", "speculative"])
def test_the_device_writes_it_alone_and_the_cloud_searches_by_it(
    mode: Any, tandem: Tandem, frames: list[LinkFrame]
) -> None:
    written = tandem.query(
        ask_to_condense(TURNS, QUESTION),
        mode=mode, only="device", num_documents=0, temperature=0.0, max_new_tokens=condensing.MAX_TOKENS,
    ).text  # fmt: skip
    frames.clear()
    first = tandem.query(QUESTION, history=HISTORY, mode=mode, **OPTIONS)
    asked = opened(frames)
    assert asked.condensed == asked.search_text == condensing.read_question(written) != ""
    assert (asked.query, asked.history) == (QUESTION, TURNS)
    assert f"device: Documents were found by the question {asked.condensed!r}." in first.notes
    assert tandem.query(QUESTION, history=HISTORY, mode=mode, **OPTIONS).token_ids == first.token_ids


def test_documents_are_those_that_it_finds(
    tandem: Tandem, frames: list[LinkFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that writes what it should, which the bundled one was not trained for."""
    monkeypatch.setattr(condensing, "read_question", lambda text: "What soup does Mura like?")
    sources = {
        tuple(source.id for source in answer.sources)
        for answer in (
            tandem.query(QUESTION, history=HISTORY, **OPTIONS),
            tandem.query("What soup does Mura like?", **OPTIONS),
        )
    }
    assert len(sources) == 1


@pytest.mark.parametrize("case", ["nothing written", "does not fit"])
def test_without_one_the_last_question_finds_documents(
    case: str, tandem: Tandem, frames: list[LinkFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "nothing written":
        monkeypatch.setattr(condensing, "read_question", lambda text: "")
    else:
        monkeypatch.setattr(condensing, "ask_to_condense", lambda history, question: "word " * 2_000)
    frames.clear()
    answer = tandem.query(QUESTION, history=HISTORY, **OPTIONS)
    asked = opened(frames)
    assert (asked.condensed, asked.search_text) == ("", QUESTION)
    assert any(note.startswith("device: The model wrote no question") for note in answer.notes)


def test_only_a_follow_up_with_documents_is_written_anew() -> None:
    spec = make_spec(chat_query="condensed", history=TURNS, device_documents=2)
    assert condensing.is_wanted(spec)
    assert not condensing.is_wanted(replace(spec, condensed="What soup does Mura like?"))
    assert not condensing.is_wanted(replace(spec, history=()))
    assert not condensing.is_wanted(replace(spec, chat_query="all"))
    assert not condensing.is_wanted(replace(spec, documents={}))
    assert not condensing.is_wanted(condensing.make_request(spec))
    assert replace(spec, condensed="What soup does Mura like?").search_text == "What soup does Mura like?"


def test_what_a_model_is_asked_has_the_end_of_the_conversation() -> None:
    asked = ask_to_condense(TURNS, QUESTION)
    assert asked.endswith(
        "\n\nUser: Which walks does Mura like?\nAssistant: Mura likes forest walks.\nUser: And what soup?"
    )
    long = (Message("user", "x" * CONDENSED_CHARS), Message("assistant", "Yes."))
    assert ask_to_condense(long, QUESTION).endswith("nothing else.\n\nAssistant: Yes.\nUser: And what soup?")


def test_the_first_line_counts_as_far_as_it_is_searched_by() -> None:
    assert condensing.read_question(" \n What soup?\nIt is good.") == "What soup?"
    assert condensing.read_question("  \n") == ""
    assert condensing.read_question("x" * 1000) == "x" * condensing.MAX_CHARS
