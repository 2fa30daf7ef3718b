"""One side that answers by itself on a real cluster, its documents in one row, texts of the caller, laws, and
provisional tokens."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tandem import Tandem
from tandem.aggregation.rules import draft_rule
from tandem.codecs import codec_of
from tandem.errors import ConfigError, QueryError, TandemError
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
from tandem.lab.simulation.display import Display
from tandem.topology import PARTIES, Party

QUESTION = "Which game should Mira try?"


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
    before = link_bytes(rag)
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
    assert {source.title is None for source in found.sources} == {party is Party.CLOUD}
    assert not [event for event in events if isinstance(event, PeerEvent | PlacementEvent)]


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize(("temperature", "rule"), [(0.0, "coupled"), (1.0, "coupled"), (1.0, "algorithm1")])
def test_law_of_a_lone_answer_is_the_party_s_own(
    rag: Tandem, party: Party, temperature: float, rule: str
) -> None:
    """Every token is the draw from the side's own decoded law: at temperature 0 its argmax."""
    options: dict[str, Any] = {"seed": 5, "temperature": temperature, "draft_rule": rule, "max_new_tokens": 8}
    options["placement"] = party.value  # of no effect, but the default goes with coupled drafts only
    answer = rag.query(QUESTION, only=party.value, keeps_distributions=True, **options)
    kept = rag.sequence(answer, party.value)
    codec = codec_of(rag.config.codec)
    draw = draft_rule(rule, temperature)
    distributions = [codec.decode(distribution) for distribution in kept["laws"]]
    drawn = [
        draw.draft(distribution, seed=5, step=step, party=party)
        for step, distribution in enumerate(distributions)
    ]
    assert tuple(kept["tokens"]) == answer.token_ids == tuple(drawn)
    if temperature == 0.0:
        assert drawn == [
            int(distribution.ids[np.argmax(distribution.probabilities)]) for distribution in distributions
        ]


def test_dense_laws_and_that_they_are_fetched_once(rag: Tandem) -> None:
    answer = rag.query(QUESTION, only="device", keeps_distributions=True, seed=7)
    dense = [
        np.frombuffer(distribution, "<f2")
        for distribution in rag.sequence(answer, "device", dense=True)["laws"]
    ]
    assert [int(distribution.argmax()) for distribution in dense] == list(answer.token_ids)
    assert {len(distribution) for distribution in dense} == {rag.described[Party.DEVICE]["vocab_size"]}
    assert all(abs(float(distribution.sum(dtype=np.float64)) - 1) < 0.01 for distribution in dense)
    with pytest.raises(TandemError, match=r"asked with keeps_distributions, until they are fetched"):
        rag.sequence(answer, "device")


def test_a_whole_answer_in_one_call_is_the_same(rag: Tandem) -> None:
    for party in PARTIES:
        answer = rag.query(QUESTION, only=party.value, keeps_distributions=True, seed=7)
        kept = rag.sequence(answer, party.value)
        assert rag.written(QUESTION, party.value, seed=7) == kept
        assert len(kept["tokens"]) > 8
        assert np.isfinite(kept["log_weight"])


def test_a_stream_s_last_event_names_its_sequence(rag: Tandem) -> None:
    *_, done = rag.stream(QUESTION, only="cloud", keeps_distributions=True, seed=7)
    assert isinstance(done, DoneEvent)
    assert rag.sequence(done, "cloud") == rag.written(QUESTION, "cloud", seed=7)


def test_a_whole_answer_in_one_call_ends_at_a_stop_text_or_says_why_it_failed(rag: Tandem) -> None:
    for party in PARTIES:
        whole = rag.query(QUESTION, only=party.value, seed=7)
        stop = next(event.text for event in whole.tokens[1:] if event.text.strip())
        answer = rag.query(QUESTION, only=party.value, seed=7, stop=(stop,))
        assert (answer.reason, len(answer.tokens) < len(whole.tokens)) == ("stop", True)
        assert tuple(rag.written(QUESTION, party.value, seed=7, stop=(stop,))["tokens"]) == answer.token_ids
        began_s = time.monotonic()
        with pytest.raises(QueryError, match=r"(?i)tokens.*context"):
            rag.written("why " * 3000, party.value)
        assert time.monotonic() - began_s < 20, "not at the time limit"


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
        (
            {"given_texts": ("a text",)},
            r"^given_texts belongs to a side that answers alone, this query asks both",
        ),
        ({"keeps_distributions": True}, r"^keeps_distributions belongs to a side that answers alone"),
        ({"only": "cloud", "given_texts": ("",)}, r"^given_texts is a list of texts that are not empty"),
        (
            {"only": "cloud", "given_texts": ("x" * 300_001,)},
            r"^given_texts holds at most 300000 characters",
        ),
    ],
)
def test_refused(rag: Tandem, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, QueryError), match=sentence):
        rag.query(QUESTION, **options)


def test_one_row_and_texts_of_the_caller(rag: Tandem) -> None:
    """The device alone cannot know what the cloud's documents say; with their texts it can."""
    texts = rag.cloud_texts(QUESTION, 16)
    assert len(set(texts)) == 16
    answer = rag.query(QUESTION, only="device", given_texts=texts, seed=7)
    ids = [source.id for source in answer.sources]
    assert ids[4:] == [f"given-{n}" for n in range(1, 17)]
    scores = [source.score or 0.0 for source in answer.sources]
    assert scores[4:] == sorted(scores[4:], reverse=True), "scored as the cloud scores them"
    assert answer.text == rag.query(QUESTION, seed=7).text, "all documents on one side"
    joined = rag.query(QUESTION, only="device", given_texts=texts, context_aggregation=True, seed=7)
    assert sorted(source.id for source in joined.sources) == sorted(ids)


def test_one_row_on_both_parties(rag: Tandem) -> None:
    answer = rag.query(QUESTION, context_aggregation=True, seed=7)
    assert answer.reason in ("eos", "length")
    assert len(answer.sources) == 20
    assert (
        answer.token_ids == rag.query(QUESTION, context_aggregation=True, seed=7, synchronous=True).token_ids
    )


def test_the_device_hands_no_texts_out(rag: Tandem) -> None:
    retriever = rag._parties[Party.DEVICE]["retriever"]
    with pytest.raises(TandemError, match=r"^Only the cloud's documents, which are public, may be fetched"):
        rag._run(rag._result(retriever.texts.remote(QUESTION, 1)))


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
