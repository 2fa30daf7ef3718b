"""Answers in steps are those of the reference: each query of its own loop, in the order that what was said gives."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from math import inf, isfinite, isnan, log, nan
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="answers in steps follow grammars (extra [grammar])")

from tandem import Config, Tandem
from tandem.client import steps
from tandem.client.request import build_spec
from tandem.client.steps import MAX_CASES, choice_query, find_cases, last_query
from tandem.errors import QueryError
from tandem.events import (
    DoneEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
    TokenLogprob,
    collect,
)
from tandem.modes import SessionSpec
from tandem.retrieval.words import mark_of
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
QUESTION = "What tyre pressure does our car need?"
PAGE = "Velino City: 2.1 bar. Velino Trek: 2.6 bar."


@pytest.fixture(scope="module")
def pair() -> LocalPair:
    return local_pair(CONFIG)


def spec_of(question: str, **options: Any) -> SessionSpec:
    spec = build_spec(CONFIG, DESCRIBED, question, **{"max_new_tokens": 12} | options)
    return change_spec(spec, race_depth=CONFIG.codec.race_depth)


@pytest.mark.parametrize(
    "count", [2, pytest.param(120, marks=pytest.mark.nightly("5 minutes: 120 answers of several queries"))]
)
def test_each_query_is_that_of_the_reference(rag: Tandem, pair: LocalPair, count: int) -> None:
    num_others = 0
    for number in range(count):
        question = QUESTIONS[number % len(QUESTIONS)]
        options: dict[str, Any] = {"seed": number, "temperature": float(number % 2)}
        answer = rag.query(question, steps="always", max_new_tokens=12, **options)
        *said, text = say_in_steps(spec_of(question, **options), pair.engines, pair.retrievers)
        assert [(step.party, step.text) for step in answer.steps] == [("device", each) for each in said]
        assert answer.text == text
        num_others += answer.text != rag.query(question, steps="never", max_new_tokens=12, **options).text
    assert num_others > 0


def test_what_is_said_decides_what_is_asked_next() -> None:
    spec = spec_of(QUESTION, logit_bias={80: 5.0}, num_logprobs=2)
    choice = choice_query(spec, ["Velino Trek", "Otter (2)"])
    assert choice.grammar == '{"regex": "Our notes say: (Velino\\\\ Trek|Otter\\\\ \\\\(2\\\\))"}'
    assert (choice.only, choice.search, choice.on_peer_loss) == ("device", spec.query, "wait")
    assert (choice.logit_bias, choice.num_logprobs, choice.sampling.temperature) == ((), None, 0.0)
    last = last_query(spec, "Velino Trek")
    assert (last.query, last.decoding.mode) == (f"{spec.query} (Velino Trek)", "speculative")
    assert (last.logit_bias, last.num_logprobs) == (spec.logit_bias, 2)
    assert len({spec.session, choice.session, last.session}) == 3  # the number of a closed query is taken


def test_a_step_that_fails_leaves_the_question_as_it_is(rag: Tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    question = QUESTIONS[0]
    plain = rag.query(question, seed=3, max_new_tokens=12, steps="never")
    monkeypatch.setattr(steps, "SAYS", "(")
    monkeypatch.setattr(steps, "shared_names", lambda *_: {"a": True, "b": True})
    answer = rag.query(question, seed=3, max_new_tokens=12, steps="always")
    assert answer.token_ids == plain.token_ids
    assert answer.steps == ()
    assert any("not written in steps" in note for note in answer.notes)
    with pytest.raises(QueryError):
        rag.query(" ", steps="always")
    for party in PARTIES:
        options: dict[str, Any] = {"num_documents": {party: 0}, "steps": "always", "mode": "dual"}
        bare = rag.query(question, max_new_tokens=1, **options)
        assert f"device: {steps.NO_STEPS}" in bare.notes
        assert all(map(isfinite, bare.tokens[0].log_weights.values())), "JSON has no word for others"


def token(text: str, most: float = 0.5, **fits: float) -> TokenEvent:
    return committed(0, text=text, log_weights=fits, most=most)


def sources_of(party: str, text: str) -> SourcesEvent:
    """What a party tells of a passage all of whose words are rare."""
    marks = b"".join(mark_of(word, is_rare=True) for word in re.findall(r"\w+", text)).hex()
    source = Source(party=party, id="a", score=0.5, text=text)
    return SourcesEvent(party=party, sources=(source,), retrieve_s=0.0, prefill_s=0.0, marks=marks)


FITS = {"device": 9.0, "cloud": 10.0}
NOTE = "Our car is a Velino Trek."


@pytest.mark.parametrize(
    ("note", "always", "most", "other", "said", "text", "num_asked"),
    [
        (NOTE, False, 0.5, 0.9, ["Velino Trek"], "2.6", 2),  # one case needs no choice
        ("It is a Velino Trek, no City.", False, 0.5, 0.9, ["Velino Trek"], "2.6", 3),
        ("It is a Velino Trek or a City.", False, 0.5, 0.9, [], "2.1 bar", 2),  # the choice is cut
        (NOTE, False, 0.5, 0.54, ["Velino Trek"], "2.1 bar", 2),  # the last answer is hardly surer
        (NOTE, False, 0.5, 0.0, ["Velino Trek"], "2.1 bar", 2),  # it fails
        (NOTE, False, 0.5, -0.9, ["Velino Trek"], "2.1 bar", 2),  # it is cut
        (NOTE, False, 0.5, -0.8, ["Velino Trek"], "2.1 bar", 2),  # the device ends it alone
        (NOTE, False, 0.95, 1.0, [], "2.1 bar", 1),  # the plain one is sure
        (NOTE, False, nan, 1.0, [], "2.1 bar", 1),
        (NOTE, True, 0.9, 0.1, ["Velino Trek"], "2.6", 2),
        ("It is a cart.", False, 0.5, 0.9, [], "2.1 bar", 1),
        ("It is a cart.", True, 0.5, 0.9, [], "2.1 bar", 1),
    ],
)
def test_the_surer_answer_stands(
    note: str, always: bool, most: float, other: float, said: list[str], text: str, num_asked: int
) -> None:
    """The answer as it was asked for is under way; is closed, goes on, or is kept until another is surer."""
    asked, closed, spec = list[SessionSpec](), list[int](), spec_of(QUESTION)

    async def ask(one: SessionSpec, notes: tuple[str, ...] = ()) -> AsyncGenerator[Event, None]:
        asked.append(one)
        says = {spec.query: ["2.1", " bar"], f"{spec.query} (Velino Trek)": ["2.6"]}[one.query]
        says = [f"Our notes say: {'Vel' if 'or' in note else 'Velino Trek'}"] if one.only else says
        try:
            if other == 0.0 and one.query != spec.query:
                raise QueryError("It is away.")
            yield sources_of("device", note)
            yield replace(sources_of("cloud", PAGE), sources=())
            yield ProvisionalEvent(step=0, token=0, text=says[0], shown_at_s=0.0)
            for each in says:
                event = token(each, most=most if one.query == spec.query else nan, **FITS)
                named = None if one.num_logprobs is None else TokenLogprob(token=0, logprob=log(abs(other)))
                yield replace(event, logprob=named)
            is_last, figures = one.query != spec.query, SessionStatistics(sent_bytes=10, total_s=1.0)
            alone = replace(figures, degraded_from=0) if is_last and other == -0.8 else figures
            cut = "It is away." if is_last and other == -0.9 else None
            yield DoneEvent(reason="eos", statistics=alone, error=cut)
        finally:
            closed.append(one.session)

    async def collected() -> list[Event]:
        return [event async for event in steps.ask_in_steps(spec, ask, always=always)]

    answer = collect(events := asyncio.run(collected()), 0)
    assert (answer.text, [step.text for step in answer.steps]) == (text, said)
    assert [one.wants_marks for one in asked] == [True] + [False] * (num_asked - 1)
    assert len(asked) == len(closed) == num_asked
    num_whole = num_asked - bool(always and said) - (other <= 0.0)  # of others no traffic is known
    assert answer.statistics.sent_bytes == 10 * num_whole
    is_kept = num_asked > 1 and text == "2.1 bar"
    # the time since the question counts, in which held answers took less than they tell
    assert (answer.statistics.total_s > 1.0) == (always and bool(said))
    drafts = [event.shown_at_s for event in events if isinstance(event, ProvisionalEvent)]
    assert (min(drafts) > 0.0) == (always and bool(said))
    what = {0.0: "It is away.", -0.9: "It is away.", -0.8: "It ended early."}.get(other, "")
    what = what or ("" if said else "The device named none of the names.")
    why = f"The answer was not written in steps: {what}" if what else steps.STANDS
    assert answer.notes == ((f"device: {why}",) if is_kept else ())
    assert all(token.logprob is None for token in answer.tokens), "nobody asked for it"


def test_an_answer_whose_cloud_is_lost_goes_on_plain() -> None:
    """No sources of the cloud will come; what was held is shown at once."""
    seen = list[str]()

    async def ask(one: SessionSpec, notes: tuple[str, ...] = ()) -> AsyncGenerator[Event, None]:
        for event in (sources_of("device", "a Velino Trek"), PeerEvent(step=0, is_alone=True, party="cloud")):
            yield event
        seen.append("token")
        yield token("2.1", **FITS)
        yield DoneEvent(reason="eos", statistics=SessionStatistics())

    async def shown() -> None:
        async for event in steps.ask_in_steps(spec_of(QUESTION), ask, always=True):
            seen.append(type(event).__name__)

    asyncio.run(shown())
    assert seen == ["SourcesEvent", "PeerEvent", "token", "TokenEvent", "DoneEvent"]


def test_steps_are_taken_where_the_device_fits_and_a_name_is_shared() -> None:
    own, other = sources_of("device", "Our car is a Velino Trek."), sources_of("cloud", PAGE)

    def found(*events: Event, always: bool = False) -> tuple[str, ...] | None:
        return find_cases(QUESTION, events, always=always)

    def fitting(**fits: float) -> tuple[str, ...] | None:
        return found(own, other, token("", **fits))

    assert fitting(device=9.0, cloud=19.0) == fitting(device=-40.0, cloud=-48.0) == ("Velino Trek",)
    for fits in ({"device": 9.0, "cloud": 19.1}, {"device": 9.0}, {"cloud": -9.0}, {}):
        assert fitting(**fits) == ()
    assert found(own, other, token("", most=nan, **FITS)) == ()  # how sure it is will not be known
    assert found(own, other) is None
    assert found(own, token("", **FITS)) is found(own, always=True) is None
    assert found(own, token("", device=9.0)) == ()  # the device does not wait for the cloud
    assert found(own, other, always=True) == ("Velino Trek",)
    assert found(own, sources_of("cloud", "A pie.")) == ()
    fish = sources_of("device", "We have fish."), sources_of("cloud", "Some fish.")
    assert (found(*fish), found(*fish, always=True)) == ((), ("fish",))
    known = find_cases("What about the Velino Trek?", [own, other, token("", **FITS)], always=False)
    assert known == ()
    many = " ".join(f"Case{number}." for number in range(20))
    assert len(found(sources_of("device", many), sources_of("cloud", many), always=True) or ()) == MAX_CASES


@pytest.mark.parametrize(
    ("answer", "note", "device", "trust"),
    [
        ("2.1 bar", NOTE, 9.0, 0.6),  # its words are the cloud's
        ("The tyre pressure of our car.", NOTE, 9.0, 0.42),  # it says what the question says
        ("Our car is a Velino Trek.</think>2.1 bar", NOTE, 9.0, 0.6),  # what is thought does not count
        ("A Velino Trek.", NOTE, 9.0, 0.42),  # the name with which the question is still to be asked
        ("2.1 bar", NOTE, 10.0, 0.42),  # the note fits as well, and has no bar
        ("Yes, our car.", NOTE, 10.0, 0.6),
        ("Two bars", "The Velino Trek, our car, needs two bars of tyre pressure.", 10.0, 0.72),
        ("Two bars", "The Velino Trek, our car, needs tyre pressure.", 10.0, 0.504),
    ],
)
def test_an_answer_is_trusted_by_its_words_and_the_notes(
    answer: str, note: str, device: float, trust: float
) -> None:
    tokens = [token(answer, most=0.36, device=device, cloud=10.0), token("", most=1.0)]
    events = [sources_of("device", note), sources_of("cloud", PAGE), *tokens]
    end = DoneEvent(reason="eos", statistics=SessionStatistics())
    assert steps.trust(QUESTION, [*events, end], ["Velino Trek"]) == pytest.approx(trust)
    assert isnan(steps.trust(QUESTION, [*events, replace(end, reason="length")], ["Velino Trek"]))
    unsure = [*events[:2], token(answer, most=0.24, device=device, cloud=10.0), token("", most=1.0), end]
    assert isnan(steps.trust(QUESTION, unsure, ["Velino Trek"]))


def test_what_is_begun_plain_ends_as_in_the_simulation(
    rag: Tandem, pair: LocalPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query that was begun is none of those that follow: a party refuses its number."""
    monkeypatch.setattr(steps, "SURE", 1.1)
    monkeypatch.setattr(steps, "SURER", 1.0)
    monkeypatch.setattr(steps, "LEAST_SURE", 0.0)
    monkeypatch.setattr(steps, "LESS_FIT", inf)
    named = steps.shared_names
    monkeypatch.setattr(steps, "shared_names", lambda *given: dict.fromkeys(named(*given), True))
    ends = set[tuple[bool, bool]]()
    for question in QUESTIONS[:8]:
        answer = rag.query(question, max_new_tokens=24, steps="auto", timeout_s=20)
        wanted, _ = pair.answer_in_steps(spec_of(question, max_new_tokens=24), always=False)
        said, expected = ([step.text for step in each.steps] for each in (answer, wanted))
        assert (answer.text, said) == (wanted.text, expected)
        is_plain = answer.text == rag.query(question, max_new_tokens=24, steps="never").text
        ends.add((bool(answer.steps), is_plain))
    assert ends - {(False, True), (True, True)} == {(True, False)}
