"""One side that answers by itself on a real cluster, and provisional tokens."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tandem import Tandem
from tandem.errors import ConfigError, QueryError
from tandem.events import (
    Answer,
    DoneEvent,
    Event,
    PeerEvent,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    SourcesEvent,
    TokenEvent,
)
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.display import Display

QUESTION = "Which game should Mira try?"


def quiet_link_bytes(rag: Tandem) -> int:
    """As `link_bytes`, once the last receipts of earlier queries have been sent."""
    seen = -1
    while seen != (now := link_bytes(rag)):
        seen = now
        time.sleep(1.0)
    return seen


def link_bytes(rag: Tandem) -> int:
    """Bytes that the two draft queues have sent each other so far."""
    actors = {actor["name"]: actor for actor in rag.status()["actors"]}
    return sum(
        int(actors[f"{party}/draft_queue"]["links"][f"{party.other}/draft_queue"]["sent_bytes"])
        for party in PARTIES
    )


@pytest.mark.parametrize("party", PARTIES)
def test_nothing_of_a_lone_answer_crosses_the_link(rag: Tandem, party: Party) -> None:
    rag.query(QUESTION)
    before = quiet_link_bytes(rag)
    events = list(rag.stream(QUESTION, only=party.value, seed=7))
    assert link_bytes(rag) == before
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert (done.reason, done.statistics.degraded_from, done.statistics.sent_bytes) == ("eos", None, 0)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert {token.aggregator for token in tokens} == {party}
    assert all(getattr(token, f"{party}_accepted") for token in tokens)
    assert 0 < tokens[0].committed_s <= tokens[-1].committed_s == done.statistics.total_s
    (found,) = [event for event in events if isinstance(event, SourcesEvent)]
    assert found.party is party
    assert all(source.title and source.text for source in found.sources), "it is home, and they are its own"
    assert not [event for event in events if isinstance(event, PeerEvent | PlacementEvent)]


def test_leaving_a_lone_stream_early_frees_its_party(rag: Tandem) -> None:
    for party in PARTIES:
        for event in rag.stream(QUESTION, only=party.value, max_new_tokens=200, temperature=1.0, seed=1):
            if isinstance(event, TokenEvent) and event.step == 2:
                break  # the autouse fixture sees that nothing is left


def test_a_lone_answer_that_cannot_be_given(rag: Tandem) -> None:
    for party in PARTIES:
        with pytest.raises(QueryError, match=r"(?i)tokens.*context"):
            rag.query("why " * 3000, only=party.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": "moon"}, r"^A party is device or cloud, not 'moon'"),
    ],
)
def test_refused(rag: Tandem, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, QueryError), match=sentence):
        rag.query(QUESTION, **options)


def shown(events: list[Event]) -> Display:
    display = Display()
    for event in events:
        display.add(event)
    return display


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3}, {"only": "device"}, {"only": "cloud"}])
def test_provisional_tokens_end_as_the_committed_text(rag: Tandem, options: dict[str, Any]) -> None:
    events = list(rag.stream(QUESTION, seed=11, show_drafts=True, **options))
    plain = list(rag.stream(QUESTION, seed=11, **options))
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    text = "".join(event.text for event in tokens)
    assert shown(events).text == text == "".join(e.text for e in plain if isinstance(e, TokenEvent))
    assert not [event for event in plain if isinstance(event, ProvisionalEvent | RetractEvent)]
    first = next(e for e in events if isinstance(e, TokenEvent | ProvisionalEvent))
    assert isinstance(first, ProvisionalEvent)
    assert first.shown_at_s <= tokens[0].committed_s


def test_an_answer_ignores_provisional_tokens(rag: Tandem) -> None:
    answer: Answer = rag.query(QUESTION, seed=11, show_drafts=True)
    assert answer.text == rag.query(QUESTION, seed=11).text
