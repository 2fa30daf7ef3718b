"""Answers in steps are those of the reference: each query of its own loop, in the order that what was said gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="answers in steps follow grammars (extra [grammar])")

from tandem import Config, Tandem
from tandem.client import steps
from tandem.client.request import build_spec
from tandem.client.steps import Said, named_cases, need_steps, next_query
from tandem.errors import QueryError
from tandem.events import (
    DoneEvent,
    Event,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
    collect,
)
from tandem.modes import SessionSpec
from tandem.topology import PARTIES
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.quality.local import LocalPair, say_in_steps
from tandem_lab.quality.memoized import local_pair
from tandem_lab.simulation.specs import change_spec
from tests.token_events import committed

QUESTIONS = [each.question for each in read_bundled_questions()]
CONFIG = Config.load(None, ["link.on_peer_loss=wait"])
DESCRIBED: dict[Any, dict[str, Any]] = {
    party: {"decode_line": [], "has_grammars": True, "eos_token_ids": [1], "vocab_size": 1636}
    for party in PARTIES
}
LISTED = '["Velino City", "Velino Trek", "Velino Van", "Spare wheel"]'


@pytest.fixture(scope="module")
def pair() -> LocalPair:
    return local_pair(CONFIG)


def spec_of(question: str, **options: Any) -> SessionSpec:
    spec = build_spec(CONFIG, DESCRIBED, question, max_new_tokens=12, **options)
    return change_spec(spec, race_depth=CONFIG.codec.race_depth)


@pytest.mark.parametrize(
    "count", [2, pytest.param(120, marks=pytest.mark.nightly("5 minutes: 120 answers of three queries"))]
)
def test_each_query_is_that_of_the_reference(
    rag: Tandem, pair: LocalPair, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are cut off, too: the toys end none by themselves."""
    monkeypatch.setattr(steps, "LIST_TOKENS", 24)
    num_others = 0
    for number in range(count):
        question = QUESTIONS[number % len(QUESTIONS)]
        options: dict[str, Any] = {"seed": number, "temperature": float(number % 2)}
        answer = rag.query(question, steps="always", max_new_tokens=12, **options)
        listed, known, text = say_in_steps(spec_of(question, **options), pair.engines, pair.retrievers)
        assert [step.party for step in answer.steps] == ["cloud", "device"]
        assert answer.steps[0].text == "; ".join(steps.read_cases(listed))
        assert (answer.steps[1].text, answer.text) == (known.removeprefix("Our notes say:").strip(), text)
        num_others += answer.text != rag.query(question, steps="never", max_new_tokens=12, **options).text
    assert num_others > 0


def test_only_cases_that_the_passages_name_may_be_chosen() -> None:
    question, notes = "What tyre pressure does our car need?", ["Our car is a Velino Trek, a grey one."]
    assert named_cases(LISTED, question, notes) == ["Velino Trek"]
    assert named_cases(LISTED, question, ["It is a Velino."]) == []  # every Velino is one
    assert named_cases(LISTED, "What about the Trek?", notes) == []  # known already
    assert named_cases('["A", "B", "cut o', "?", ["a b"]) == ["A", "B"]
    assert named_cases('["Trek"]', question, notes) == ["Trek"]


def test_what_is_said_decides_what_is_asked_next() -> None:
    spec = spec_of("What tyre pressure does our car need?", logit_bias={80: 5.0}, num_logprobs=2)
    listing = next_query(spec, [])
    assert (listing.party, listing.spec.decoding.mode, listing.spec.search) == (
        "cloud",
        "speculative",
        spec.query,
    )
    assert (listing.spec.logit_bias, listing.spec.num_logprobs) == ((), None)
    assert listing.spec.on_peer_loss == "wait"
    listed = Said(text=LISTED, passages=("a Velino Trek",))
    choice = next_query(spec, [listed])
    assert (choice.party, choice.spec.only) == ("device", "device")
    assert choice.spec.grammar == '{"regex": "Our notes say: (Velino\\\\ Trek)"}'
    known = Said(text="Our notes say: Velino Trek", passages=())
    final = next_query(spec, [listed, known])
    assert (final.party, final.spec.query) == (None, f"{spec.query} (Velino Trek)")
    assert (final.spec.logit_bias, final.spec.num_logprobs) == (spec.logit_bias, 2)
    assert next_query(spec, [listed, Said(text="", passages=())]).spec.query == spec.query
    unknown = Said(text=LISTED, passages=("a bicycle",))
    assert next_query(spec, [unknown], may_say=False).spec == spec
    assert next_query(spec, [unknown]).spec.grammar == json.dumps({"regex": r"Our notes say: [^\n]+"})


def test_a_step_that_fails_leaves_the_question_as_it_is(rag: Tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    question = QUESTIONS[0]
    plain = rag.query(question, seed=3, max_new_tokens=12, steps="never")
    monkeypatch.setattr(steps, "CASES", "(")
    answer = rag.query(question, seed=3, max_new_tokens=12, steps="always")
    assert answer.token_ids == plain.token_ids
    assert answer.steps == ()
    assert any("not written in steps" in note for note in answer.notes)
    with pytest.raises(QueryError):
        rag.query(" ", steps="always")
    notes = rag.query(
        question, num_documents={"cloud": 0}, steps="always", mode="dual", max_new_tokens=1
    ).notes
    assert notes == (f"device: {steps.NO_STEPS}",)


def token(text: str, **fits: float) -> TokenEvent:
    return committed(0, text=text, log_weights=fits)


@pytest.mark.parametrize(
    ("listed", "note", "text"), [(LISTED, "a Velino Trek", "2.6"), (LISTED, "a cart", "2.1 bar")]
)
def test_an_answer_goes_on_until_steps_lead_somewhere(listed: str, note: str, text: str) -> None:
    """The answer as it was asked for is under way, and is closed or goes on."""
    asked, closed = list[SessionSpec](), list[str]()
    spec = spec_of("What tyre pressure does our car need?")

    async def ask(one: SessionSpec, notes: tuple[str, ...] = ()) -> AsyncGenerator[Event, None]:
        asked.append(one)
        says = {spec.query: ["2.1", " bar"], f"{spec.query} (Velino Trek)": ["2.6"]}.get(one.query, [listed])
        says = ["Our notes say: Velino Trek"] if one.only else says
        source = Source(party="device", id="a", score=0.5, text=note)
        try:
            yield SourcesEvent(party="device", sources=(source,), retrieve_s=0.0, prefill_s=0.0)
            for each in says:
                yield token(each, device=20.0, cloud=10.0)
            yield DoneEvent(reason="eos", statistics=SessionStatistics(sent_bytes=10, total_s=1.0))
        finally:
            closed.append(one.query)

    async def collected() -> list[Event]:
        return [event async for event in steps.ask_where_needed(spec, ask)]

    events = asyncio.run(collected())
    answer = collect(events, 0)
    assert answer.text == text
    assert [step.text for step in answer.steps] == (
        ["Velino City; Velino Trek; Velino Van; Spare wheel", "Velino Trek"] if "Trek" in note else []
    )
    assert len(asked) == len(closed) == (4 if "Trek" in note else 2)
    assert answer.statistics.sent_bytes == (30 if "Trek" in note else 10)


def test_steps_are_taken_where_the_documents_of_both_fit() -> None:
    question = "What tyre pressure does our car need?"

    def needs(passage: str, **fits: float) -> bool | None:
        source = Source(party="device", id="a", score=0.5, text=passage)
        own = SourcesEvent(party="device", sources=(source,), retrieve_s=0.0, prefill_s=0.0)
        return need_steps(question, [own, token("", **fits)])

    assert needs("Our car is a Velino.", device=9.0, cloud=8.0)
    assert needs("Our car is a Velino.", device=40.0, cloud=8.0)
    assert not needs("Our car is a Velino.", device=9.0, cloud=7.0)
    assert not needs("Our car is a Velino.", device=9.0, cloud=12.0)
    assert not needs("Our car is a Velino.", device=9.0)
    assert not needs("Tyre pressure of the car: 2.6 bar.", device=9.0, cloud=8.0)
    assert need_steps(question, [token("", device=9.0, cloud=8.0)]) is None
