"""Answers in steps: what neither party knows alone is said aloud.

No mixture of next-token distributions takes a fact that only one party has read to choose among what only the other
has read: what joins the two must stand in the prefix, the only thing that crosses the link. Mostly it is a name that
documents of both have and the question has not. So a question that needs both becomes a sequence of queries:

1. The question is asked as it is. With its sources the cloud tells the marks of the words in its passages, by which
   the device knows those that its own passages have, too: "Velino Trek". Where documents of one party suffice, or no
   name is shared, that is the answer.
2. Of several names the device alone says which it is, under a grammar that holds those only. So no more of its
   documents crosses than one choice among what the cloud has as well.
3. The question is asked, and searched for, with what was said behind it: "What tyre pressure does our car need?
   (Velino Trek)". The cloud writes the answer: it has read its own documents and what the device had to say.

The next query is a function of the question, both parties' passages and what was said before. What is said is drawn at
temperature 0, and the answer as was asked for. `tandem.modes.reference` has the law; `docs/explanation/steps.md`
what it is good for, by measurement.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from math import inf
from typing import Any

from tandem.config.schema import Config, SamplingParams
from tandem.errors import QueryError
from tandem.events import (
    DoneEvent,
    Event,
    PeerEvent,
    SessionStatistics,
    SourcesEvent,
    StepEvent,
    TokenEvent,
    collect,
)
from tandem.modes import SessionSpec
from tandem.retrieval.words import read_marks
from tandem.support import covered_share, shared_names
from tandem.topology import PARTIES, Party

MAX_CASES = 8
SAYS = "Our notes say: "
LEAST_FIT, LEAST_SHARE = 8.0, 0.8
"""Nats by which the documents of both parties must make a question more probable before it is answered in steps, and
what part of the cloud's the device's must be."""
SAID_TOKENS = 64
"""Most tokens that the device says."""
NO_STEPS = "Steps need mode dual, documents and llguidance at device and cloud, and device.privacy 0; none was taken."
Ask = Callable[..., AsyncGenerator[Event, None]]
"""`Asker.ask`, of a spec and of notes on its answer."""


def may_have_steps(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]], config: Config) -> bool:
    """Whether a query can be answered in steps: by device and cloud together, where each has documents and can follow a
    grammar, and the device does not bound what its documents say."""
    has_both = spec.parties == PARTIES and all(spec.num_documents(party) for party in PARTIES)
    can_follow = all(described.get(party, {}).get("has_grammars") for party in PARTIES)
    return spec.decoding.mode == "dual" and has_both and can_follow and not config.device.privacy


def choice_query(spec: SessionSpec, cases: Sequence[str]) -> SessionSpec:
    """The query by which the device alone says which case it is. spec: of the question as it was asked."""
    return replace(
        spec,
        session=secrets.randbits(32),
        search=spec.query,
        sampling=SamplingParams(temperature=0.0, max_new_tokens=SAID_TOKENS),
        grammar=json.dumps({"regex": f"{SAYS}({'|'.join(map(re.escape, cases))})"}),
        on_peer_loss="wait" if spec.on_peer_loss == "wait" else "fail",
        only=Party.DEVICE,
        has_several_models=False,
        show_drafts=False,
        num_logprobs=None,
        logit_bias=(),
    )


def last_query(spec: SessionSpec, said: str) -> SessionSpec:
    """The query whose answer is that of the whole: the cloud's, to the question with what was said."""
    by_cloud = replace(
        spec.decoding, mode="speculative", draft_rule="auto", placement="mirror", patience_s=inf
    )
    return replace(
        spec,
        session=secrets.randbits(32),
        query=f"{spec.query} ({said})",
        decoding=by_cloud,
        has_several_models=False,
    )


def read_said(text: str) -> str:
    """What the device said, of the text of its answer."""
    return text.removeprefix(SAYS.strip()).strip()


def find_cases(question: str, events: Sequence[Event], *, always: bool) -> tuple[str, ...] | None:
    """The names that the passages of both parties share and the question has not, MAX_CASES at most; none where a
    question is not to be answered in steps. None: the events so far do not tell.

    That is always so, or where the documents of both parties fit the question, by the nats by which they make it more
    probable, which the first votes of unequal models come with, and no passage of the device has all that is asked for.
    """
    sources = {event.party: event for event in events if isinstance(event, SourcesEvent)}
    if not sources.keys() >= set(PARTIES):
        return None
    passages = [source.text or "" for source in sources[PARTIES[0]].sources]
    own, other = (read_marks(bytes.fromhex(sources[party].marks)) for party in PARTIES)
    shared = {mark: own[mark] and other[mark] for mark in own.keys() & other.keys()}
    cases = tuple(shared_names(question, passages, shared)[:MAX_CASES])
    if always or not cases:
        return cases
    if any(covered_share(question, passage) == 1.0 for passage in passages):
        return ()
    first = next((event for event in events if isinstance(event, TokenEvent)), None)
    if first is None:
        return None
    device, cloud = (first.log_weights.get(party, 0.0) for party in PARTIES)
    return () if min(device, cloud) < LEAST_FIT or device < LEAST_SHARE * cloud else cases


async def ask_in_steps(
    spec: SessionSpec, ask: Ask, notes: tuple[str, ...] = (), *, always: bool
) -> AsyncGenerator[Event, None]:
    """The events of an answer: as the question was asked, or a StepEvent, then those of the last query, whose
    statistics count the time since the question, and the traffic of what was said, not of the query that was closed. A
    step that fails ends the steps: the question is answered as it is, and a note says why. Raises QueryError.

    always: also where the documents do not say that it needs steps.
    """
    begun_s = time.monotonic()
    async with aclosing(ask(replace(spec, wants_marks=True), notes=notes)) as plain:
        held, cases = list[Event](), None
        async for event in plain:
            held.append(event)
            cases = find_cases(spec.query, held, always=always)
            is_over = isinstance(event, DoneEvent) or (isinstance(event, PeerEvent) and event.is_alone)
            if cases is not None or is_over:
                break
        if not cases:
            for event in held:
                yield event
            async for event in plain:
                yield event
            return
    sources = next(
        event.sources for event in held if isinstance(event, SourcesEvent) and event.party == PARTIES[0]
    )
    before, said = list[SessionStatistics](), cases[0] if len(cases) == 1 else ""
    last = replace(spec, session=secrets.randbits(32))  # the plain one's number is taken
    try:
        if not said:
            answer = collect([event async for event in ask(choice_query(spec, cases))], spec.seed)
            said, sources = read_said(answer.text), answer.own_sources
            before.append(answer.statistics)
        last, is_said = last_query(spec, said), True
    except QueryError as error:
        notes, is_said = (*notes, f"The answer was not written in steps: {error}"), False
    if is_said:
        yield StepEvent(party=PARTIES[0], text=said, sources=sources)
    before_s = time.monotonic() - begun_s
    async with aclosing(ask(last, notes=notes)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                event = replace(event, committed_s=before_s + event.committed_s)
            if isinstance(event, DoneEvent):
                event = replace(event, statistics=_add_up(before, event.statistics, before_s))
            yield event


def _add_up(
    earlier: Sequence[SessionStatistics], last: SessionStatistics, before_s: float
) -> SessionStatistics:
    """The statistics of an answer, with the time since the question, and the traffic of what was said."""
    traffic = ("sent_frames", "sent_bytes", "received_frames", "received_bytes")
    return replace(
        last,
        first_token_s=before_s + last.first_token_s,
        total_s=before_s + last.total_s,
        **{name: sum(getattr(each, name) for each in (*earlier, last)) for name in traffic},
    )
