"""Answers in steps: what neither party knows alone is said aloud.

No mixture of next-token distributions takes a fact that only one party has read to choose among what only the other
has read: what joins the two must stand in the prefix, the only thing that crosses the link. So a question that needs
both becomes a sequence of queries with one writer each, of which every one is exact like any other query:

1. The cloud alone names the cases that its documents tell apart, as JSON: ["Velino City", "Velino Trek"].
2. The device alone says which it is, under a grammar that holds those cases only that its passages name. So no more
   of its documents crosses than one choice among what the cloud has listed. Where they name none, it says a sentence.
3. The question is asked, and searched for, with what was said behind it: "What tyre pressure does our car need?
   (Velino Trek)". The cloud writes the answer: it has read its own documents and what the device had to say.

The next query is a function of the question, the device's passages and what was said before. What is said is drawn at
temperature 0, and the answer as was asked for. `tandem.modes.reference` has the law; `docs/explanation/steps.md`
what it is good for, by measurement.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from tandem.config.schema import Config, SamplingParams
from tandem.errors import QueryError
from tandem.events import (
    DoneEvent,
    Event,
    SessionStatistics,
    SourcesEvent,
    StepEvent,
    TokenEvent,
    collect,
)
from tandem.modes import SessionSpec
from tandem.support import covered_share
from tandem.topology import PARTIES, Party

MAX_CASES = 8
CASE = r'"[^"\\\n]{1,48}"'
CASES = rf"\[{CASE}(, {CASE}){{0,{MAX_CASES - 1}}}\]"
"""What the cloud lists, as a regular expression: JSON without spaces that cost tokens."""
LIST = (
    "Question: {}\nWhich kinds, models, groups, places or things does the text tell apart here? "
    "List their names as JSON, without what is said about them."
)
SAYS = "Our notes say: "
SENTENCE, SENTENCE_ENDS = r"[^\n]+", (". ", "! ", "? ", "\n")
LEAST_FIT, LEAST_SHARE = 8.0, 0.8
"""Nats by which the documents of both parties must make a question more probable before it is answered in steps, and
what part of the cloud's the device's must be."""
LIST_TOKENS, SAID_TOKENS = 96, 64
"""Most tokens of a step: one that does not end is cut, and what it has is used."""
NO_STEPS = "Steps need mode dual, documents and llguidance at device and cloud, and device.privacy 0; none was taken."
Ask = Callable[..., AsyncGenerator[Event, None]]
"""`Asker.ask`, of a spec and of notes on its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one step gave."""

    text: str
    passages: tuple[str, ...]  # of the home that were read for it


@dataclass(frozen=True, slots=True, kw_only=True)
class NextQuery:
    """The next query of an answer in steps."""

    spec: SessionSpec
    party: str | None  # who alone writes it; None: it is the answer


def may_have_steps(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]], config: Config) -> bool:
    """Whether a query can be answered in steps: by device and cloud together, where each has documents and can follow a
    grammar, and the device does not bound what its documents say."""
    has_both = spec.parties == PARTIES and all(spec.num_documents(party) for party in PARTIES)
    can_follow = all(described.get(party, {}).get("has_grammars") for party in PARTIES)
    return spec.decoding.mode == "dual" and has_both and can_follow and not config.device.privacy


def next_query(spec: SessionSpec, said: Sequence[Said], *, may_say: bool = True) -> NextQuery:
    """The query that follows what was said. spec: of the question as it was asked. may_say: whether the device says a
    sentence where its passages name no case; else the question is answered as it was asked."""
    by_cloud = replace(
        spec.decoding, mode="speculative", draft_rule="auto", placement="mirror", patience_s=inf
    )
    if not said:
        decoding = replace(by_cloud, max_proposal=0)
        listing = _alone(spec, LIST_TOKENS, CASES, query=LIST.format(spec.query), decoding=decoding)
        return NextQuery(spec=listing, party=Party.CLOUD)
    cases = named_cases(said[0].text, spec.query, said[0].passages)
    if not (cases or may_say):
        return NextQuery(spec=spec, party=None)
    if len(said) == 1:
        choice = f"({'|'.join(map(re.escape, cases))})" if cases else SENTENCE
        said_alone = _alone(spec, SAID_TOKENS, SAYS + choice, only=Party.DEVICE)
        ends = () if cases else SENTENCE_ENDS
        return NextQuery(
            spec=replace(said_alone, sampling=replace(said_alone.sampling, stop=ends)), party=Party.DEVICE
        )
    known = read_known(said[1].text)
    query = f"{spec.query} ({known})" if known else spec.query
    return NextQuery(spec=replace(spec, query=query, decoding=by_cloud, has_several_models=False), party=None)


def read_known(said: str) -> str:
    """What the device said."""
    return said.removeprefix(SAYS.strip()).strip()


def _alone(spec: SessionSpec, max_tokens: int, regex: str, **changes: Any) -> SessionSpec:
    """A query of one writer, which says what a regular expression allows; its documents are those of the question."""
    return replace(
        spec,
        session=secrets.randbits(32),
        search=spec.query,
        sampling=SamplingParams(temperature=0.0, max_new_tokens=max_tokens),
        grammar=json.dumps({"regex": regex}),
        on_peer_loss="wait" if spec.on_peer_loss == "wait" else "fail",
        has_several_models=False,
        show_drafts=False,
        num_logprobs=None,
        logit_bias=(),
        **changes,
    )


async def ask_where_needed(
    spec: SessionSpec, ask: Ask, notes: tuple[str, ...] = ()
) -> AsyncGenerator[Event, None]:
    """The events of an answer as it was asked for; in steps, if at its first token the documents of both parties prove
    to fit the question. It goes on until it is known that steps lead somewhere: they cost no second beginning."""
    async with aclosing(ask(spec, notes=notes)) as plain:
        held, is_needed = list[Event](), None
        async for event in plain:
            held.append(event)
            is_needed = need_steps(spec.query, held)
            if is_needed is not None or isinstance(event, DoneEvent):
                break
        events = _resume(held, plain)
        if is_needed:
            events = ask_in_steps(spec, ask, notes, (held, plain))
        async with aclosing(events):
            async for event in events:
                yield event


def need_steps(question: str, events: Sequence[Event]) -> bool | None:
    """Whether the documents of both parties fit a question, by the nats by which they make it more probable, which the
    first votes of unequal models come with, and no passage of the device has all that is asked about; None: the events
    of the answer so far do not tell."""
    first = next((event for event in events if isinstance(event, TokenEvent)), None)
    own = next(
        (event for event in events if isinstance(event, SourcesEvent) and event.party == PARTIES[0]), None
    )
    if first is None or own is None:
        return None
    device, cloud = (first.log_weights.get(party, 0.0) for party in PARTIES)
    if min(device, cloud) < LEAST_FIT or device < LEAST_SHARE * cloud:
        return False
    return all(covered_share(question, source.text or "") != 1.0 for source in own.sources)


async def _resume(held: Sequence[Event], rest: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    for event in held:
        yield event
    async for event in rest:
        yield event


async def ask_in_steps(
    spec: SessionSpec,
    ask: Ask,
    notes: tuple[str, ...] = (),
    plain: tuple[Sequence[Event], AsyncGenerator[Event, None]] | None = None,
) -> AsyncGenerator[Event, None]:
    """A StepEvent for each step, then the events of the answer, whose statistics are those of all queries together. A
    step that fails ends the steps: the question is answered as it is, and a note says why. Raises QueryError.

    plain: the first events and the rest of that answer, which is under way, for where the device's passages name no
    case; None: then the device says a sentence.
    """
    said, earlier, shown = list[Said](), list[SessionStatistics](), list[StepEvent]()
    step = next_query(spec, said)
    try:
        while step.party is not None:
            answer = collect([event async for event in ask(step.spec)], spec.seed)
            passages = tuple(source.text or "" for source in answer.own_sources)
            said.append(Said(text=answer.text, passages=passages))
            earlier.append(answer.statistics)
            text = read_known(answer.text) if shown else "; ".join(read_cases(answer.text))
            shown.append(StepEvent(party=step.party, text=text, sources=answer.own_sources))
            step = next_query(spec, said, may_say=plain is None)
    except QueryError as error:
        step, shown = NextQuery(spec=spec, party=None), []
        notes = (*notes, f"The answer was not written in steps: {error}")
    if plain is not None:
        if step.spec is spec:
            async for event in _resume(*plain):
                yield event
            return
        await plain[1].aclose()
    for each in shown:
        yield each
    before_s = sum(each.total_s for each in earlier)
    async with aclosing(ask(step.spec, notes=notes)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                event = replace(event, committed_s=before_s + event.committed_s)
            if isinstance(event, DoneEvent):
                event = replace(event, statistics=_add_up(earlier, event.statistics))
            yield event


def _add_up(earlier: Sequence[SessionStatistics], last: SessionStatistics) -> SessionStatistics:
    """The statistics of an answer, with the time and the traffic of the steps before it."""
    traffic = ("sent_frames", "sent_bytes", "received_frames", "received_bytes")
    before_s = sum(each.total_s for each in earlier)
    return replace(
        last,
        first_token_s=before_s + last.first_token_s,
        total_s=before_s + last.total_s,
        **{name: sum(getattr(each, name) for each in (*earlier, last)) for name in traffic},
    )


def named_cases(listed: str, question: str, passages: Sequence[str]) -> list[str]:
    """The cases of a list that passages name: with all words that no other case has, nor the question."""
    cases = read_cases(listed)
    words = [_words(case) - _words(question) for case in cases]
    counts = Counter(word for each in words for word in each)
    own = [{word for word in each if counts[word] == 1} for each in words]
    there = set().union(*map(_words, passages))
    return [case for case, each in zip(cases, own, strict=True) if each and each <= there]


def read_cases(listed: str) -> list[str]:
    """The texts of a list as `CASES` has it, which may be cut off; each once, in their order."""
    texts = (match[1:-1].strip() for match in re.findall(CASE, listed))
    return [text for text in dict.fromkeys(texts) if text]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
