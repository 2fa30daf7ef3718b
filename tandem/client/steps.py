"""Answers in steps: what neither party knows alone is said aloud.

No mixture of next-token distributions takes a fact that only one party has read to choose among what only the other
has read: what joins the two must stand in the prefix, the only thing that crosses the link. Mostly it is a name that
documents of both have and the question has not. So a question that needs both becomes a sequence of queries:

1. The question is asked as it is. With its sources the cloud tells the marks of the words in its passages, by which
   the device knows those that its own passages have, too: "Velino Trek". Where no name is shared, the cloud's documents
   fit the question much better, or the answer can be trusted, that is the answer.
2. Of several names the device alone says which it is, under a grammar that holds those only. So no more of its
   documents crosses than one choice among what the cloud has as well.
3. The question is asked, and searched for, with what was said behind it: "What tyre pressure does our car need?
   (Velino Trek)". The cloud writes the answer: it has read its own documents and what the device had to say. Of it and
   the plain one the answer is the one that can be trusted more.

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
from math import exp, fsum, inf, isnan, log, nan
from sys import float_info
from typing import Any

from tandem.config.schema import Config, SamplingParams
from tandem.conversation import THOUGHT_END
from tandem.errors import QueryError
from tandem.events import (
    DoneEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    SessionStatistics,
    SourcesEvent,
    StepEvent,
    TokenEvent,
    WaitEvent,
    assemble,
    collect,
)
from tandem.modes import SessionSpec
from tandem.retrieval.words import read_marks
from tandem.support import covered_share, shared_names, tells_nothing
from tandem.topology import PARTIES, Party

MAX_CASES = 8
SAYS = "Our notes say: "
SURE, SURER, LEAST_SURE = 0.82, 1.1, 0.5
"""The trust with which a plain answer stands, how much more the other one needs, and the surety that both need."""
EMPTY, BACKED = 0.7, 1.2
"""How much surety counts of an answer that tells nothing, and where the device has read of all that is asked for."""
LESS_FIT = 10.0
"""Nats by which the device's documents may fit a question less than the cloud's, if it is answered in steps."""
SAID_TOKENS = 64
"""Most tokens that the device says."""
NO_STEPS = "Steps need mode dual, documents and llguidance at device and cloud, and device.privacy 0; none was taken."
STANDS = "The answer without what was said stands, as the one with it can be trusted no more."
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

    Unless `always`, one must be a name or a code, the device's documents must not fit the question much less than the
    cloud's, by the log weights that come with the first votes, and the answer's surety must be told.
    """
    sources = {event.party: event for event in events if isinstance(event, SourcesEvent)}
    first = next((event for event in events if isinstance(event, TokenEvent)), None)
    if not (always or first is None or (_excess(first) >= -LESS_FIT and not isnan(first.most))):
        return ()  # so, too, where the device did not wait for the cloud
    if not sources.keys() >= set(PARTIES):
        return None
    own, other = (read_marks(bytes.fromhex(sources[party].marks)) for party in PARTIES)
    shared = {mark: own[mark] and other[mark] for mark in own.keys() & other.keys()}
    names = shared_names(question, [source.text or "" for source in sources[PARTIES[0]].sources], shared)
    if not (always or any(names.values())):
        return ()
    return tuple(names)[:MAX_CASES] if always or first is not None else None


def _excess(token: TokenEvent) -> float:
    """By how many nats the device's documents fit better than the cloud's; nan: it is not known."""
    device, cloud = (token.log_weights.get(party, nan) for party in PARTIES)
    return device - cloud


def trust(question: str, events: Sequence[Event], names: Sequence[str] = ()) -> float:
    """How much a whole answer is to be trusted: its surety, less where by its words it tells nothing (`tells_nothing`,
    of these names), more where a passage of the device has all that is asked for; nan: it is not known, or less than
    LEAST_SURE, or the answer did not end by itself, for what is said again and again is sure.

    Passages of the device do not count where others' fit better, and their words may be told, or where it has no vote.
    """
    done = events[-1]
    assert isinstance(done, DoneEvent)
    answer = assemble(events, done, seed=0)
    sure = surety(answer.tokens) if answer.reason in ("eos", "stop") and answer.tokens else nan
    if not sure >= LEAST_SURE:
        return nan
    counts = _excess(answer.tokens[0]) >= 0.0
    passages = [source.text or "" for source in answer.sources if counts and source.party == PARTIES[0]]
    is_empty = tells_nothing(question, answer.text.rpartition(THOUGHT_END)[2], names, passages)
    is_backed = any(covered_share(question, passage) == 1.0 for passage in passages)
    return sure * (EMPTY if is_empty else 1.0) * (BACKED if is_backed else 1.0)


def surety(tokens: Sequence[TokenEvent]) -> float:
    """The geometric mean of the probabilities of an answer's tokens, of each the most that it can be; nan: of one of
    them it is not known."""
    logs = [
        token.logprob.logprob if token.logprob and isnan(token.most) else log(max(token.most, float_info.min))
        for token in tokens
    ]
    return exp(fsum(logs) / len(logs))


async def ask_in_steps(
    spec: SessionSpec, ask: Ask, notes: tuple[str, ...] = (), *, always: bool
) -> AsyncGenerator[Event, None]:
    """The events of an answer: as the question was asked, or a StepEvent, then those of the last query, or of the plain
    answer if it can be trusted as much. Statistics count the time since the question, and the traffic of every query
    that was not closed. A step that fails ends the steps: the answer is the plain one, and a note says why. Raises
    QueryError.

    always: also where the documents do not say that it needs steps, and whichever answer can be trusted more.
    """
    begun_s, plain, cases, trusted = time.monotonic(), list[Event](), None, nan
    async with aclosing(ask(replace(spec, wants_marks=True), notes=notes)) as asked:
        async for event in asked:
            if isinstance(event, WaitEvent):
                yield event
                continue
            plain.append(event)
            cases = find_cases(spec.query, plain, always=always)
            is_over = isinstance(event, DoneEvent) or (isinstance(event, PeerEvent) and event.is_alone)
            if cases is not None or is_over:
                break
        if cases and not always:
            plain += [event async for event in asked]
            trusted = trust(spec.query, plain, cases)
            cases = cases if trusted < SURE else ()
        if not cases:
            for event in plain:
                yield event
            async for event in asked:
                yield event
            return
    others, written, why = list[SessionStatistics](), list[Event](), STANDS
    last = replace(spec, session=secrets.randbits(32))  # the plain one's number is taken
    try:
        step = await _say(spec, ask, cases, plain, others)
        yield step
        last = last_query(spec, step.text)
        if not always:
            last = replace(last, num_logprobs=last.num_logprobs or 0)
            answer = [event async for event in ask(last, notes=notes) if not isinstance(event, WaitEvent)]
            done = answer[-1]
            assert isinstance(done, DoneEvent)
            if done.error or done.reason == "cancelled" or done.statistics.degraded_from is not None:
                raise QueryError(done.error or "It ended early.")
            written += answer
    except QueryError as error:
        notes = (*notes, why := f"The answer was not written in steps: {error}")
    if always:
        begin_s = time.monotonic() - begun_s
        async with aclosing(ask(last, notes=notes)) as asked:
            async for event in asked:
                yield _later(event, others, begin_s)
        return
    is_taken = written and trust(last.query, written) > SURER * trusted
    shown, other = (written, plain) if is_taken else (plain, written)
    others.append(_end(other))
    begin_s = time.monotonic() - begun_s - _end(shown).total_s
    for event in shown:
        if isinstance(event, SourcesEvent) and event.party == PARTIES[0] and shown is plain:
            event = replace(event, notes=(*event.notes, why))
        if isinstance(event, TokenEvent) and spec.num_logprobs is None:
            event = replace(event, logprob=None)
        yield _later(event, others, begin_s)


async def _say(
    spec: SessionSpec,
    ask: Ask,
    cases: Sequence[str],
    plain: Sequence[Event],
    others: list[SessionStatistics],
) -> StepEvent:
    """What the device says. plain: events of the answer as it was asked for. others: takes the statistics of what is
    asked here. Raises QueryError."""
    if len(cases) == 1:
        (read,) = (event for event in plain if isinstance(event, SourcesEvent) and event.party == PARTIES[0])
        return StepEvent(party=PARTIES[0], text=cases[0], sources=read.sources)
    answer = collect([event async for event in ask(choice_query(spec, cases))], spec.seed)
    others.append(answer.statistics)
    if (said := read_said(answer.text)) not in cases:
        raise QueryError("The device named none of the names.")
    return StepEvent(party=PARTIES[0], text=said, sources=answer.own_sources)


def _end(events: Sequence[Event]) -> SessionStatistics:
    """Those of a query; of none where it did not end."""
    ends = (event.statistics for event in events if isinstance(event, DoneEvent))
    return next(ends, SessionStatistics())


def _later(event: Event, others: Sequence[SessionStatistics], by_s: float) -> Event:
    """An event of a query that began so long after the question, with the traffic of others."""
    if isinstance(event, TokenEvent):
        return replace(event, committed_s=by_s + event.committed_s)
    if isinstance(event, ProvisionalEvent):
        return replace(event, shown_at_s=by_s + event.shown_at_s)
    if not isinstance(event, DoneEvent):
        return event
    last, traffic = event.statistics, ("sent_frames", "sent_bytes", "received_frames", "received_bytes")
    added = replace(
        last,
        first_token_s=by_s + last.first_token_s,
        total_s=by_s + last.total_s,
        **{name: sum(getattr(each, name) for each in (*others, last)) for name in traffic},
    )
    return replace(event, statistics=added)
