"""Asks the site of a question's home party, wherever it runs, and follows the events; or many questions at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tandem.errors import CallError, Code, ConfigError, QueryError, TandemError
from tandem.events import (
    Answer,
    DoneEvent,
    Event,
    SessionStatistics,
    SourcesEvent,
    TokenEvent,
    cited_tokens,
)
from tandem.support import Support, judge

if TYPE_CHECKING:
    from tandem.modes import SessionSpec
    from tandem.sites.port import SitePort

EVENTS_WAIT_S = 5.0
"""How long one call waits for events before the time limit is checked again."""
RPC_GRACE_S = 1.0
"""Grace period on top of a time limit, so that an actor's own error reaches us before we give up."""
FRAME_TOKENS = 1024
"""More than a template and its system prompt have; beyond that, the model counts."""
SOURCES_WAIT_S = 10.0
"""How long a finished answer waits for each party's sources while the link works."""
LOST_SOURCES_WAIT_S = 1.0
"""The same where the answer was finished without the peer."""


class Asker:
    """Asks through the sites of the parties."""

    def __init__(
        self,
        sites: Mapping[str, SitePort],
        explain_loss: Callable[[CallError], str],
        described: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
    ) -> None:
        """explain_loss: makes a sentence of a call that failed; it may block. described: what parties have loaded."""
        self._described = described
        self._sites = sites
        self._explain_loss = explain_loss

    async def ask(
        self, spec: SessionSpec, limit_s: float, *, at_once: bool, notes: tuple[str, ...] = ()
    ) -> AsyncGenerator[Event, None]:
        """Events of one query, as they happen or some at a time; leaving early cancels it at both parties.

        limit_s: of silence, after which the answer ends with what it has. notes: more of them, about the home's
        documents. Raises QueryError.
        """
        if spec.home not in self._sites:
            raise QueryError(
                f"The {spec.home} answers by itself where its client is, which a join link does not reach; leave out "
                f'only={str(spec.home)!r}, or let it write every token with mode="speculative" and max_proposal=0.',
                option="only",
            )
        is_done, so_far = False, list[Event]()
        try:
            spec = await self.fit(spec)
            await self._check_filter(spec)
            # Not awaited: the events will tell how it went.
            call = self._sites[spec.home].call
            opening = asyncio.ensure_future(call("draft_queue", "open", spec.as_for(spec.home).to_json()))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.sleep(0)  # it is under way before the first call for events
            async with contextlib.aclosing(self._events(spec, limit_s, at_once)) as events:
                async for event in events:
                    is_done = isinstance(event, DoneEvent)
                    if isinstance(event, DoneEvent):
                        support = find_support(spec.query, so_far)
                        event = replace(event, support=support) if support else event
                    so_far.append(event)
                    if notes and isinstance(event, SourcesEvent) and event.party == spec.home:
                        event = replace(event, notes=(*event.notes, *notes))
                    yield event
        except CallError as error:
            raise QueryError(await asyncio.to_thread(self._explain_loss, error), code=error.code) from None
        finally:
            if not is_done:
                await self._give_up(spec)

    async def count_tokens(self, texts: Sequence[str]) -> int:
        """Tokens of these texts, as the model of the first party here counts them. Raises QueryError."""
        site = next(iter(self._sites.values()))
        try:
            return int(await site.call("decoder", "count_tokens", list(texts)))
        except CallError as error:
            raise QueryError(await asyncio.to_thread(self._explain_loss, error), code=error.code) from None

    async def fit(self, spec: SessionSpec) -> SessionSpec:
        """The spec with an answer that fits every model's context, so that all parties end it at the same token.

        The home counts, by the shortest context: nothing is asked across the link, where the other party may be lost.
        It is asked only if that might be too short. A text has at most as many tokens as bytes.
        """
        contexts = [self._described().get(party, {}).get("context_length") for party in spec.parties]
        shortest = min((context for context in contexts if context is not None), default=None)
        if shortest is None or spec.num_bytes + FRAME_TOKENS + 2 * spec.sampling.max_new_tokens <= shortest:
            return spec
        room = spec.sampling.max_new_tokens
        # A lost decoder is told of by who opens the query.
        with contextlib.suppress(CallError):
            home = self._sites[spec.home]
            room = min(room, await home.call("decoder", "answer_room", spec.to_json(), shortest))
        return replace(spec, sampling=replace(spec.sampling, max_new_tokens=room))

    async def _check_filter(self, spec: SessionSpec) -> None:
        """Raise QueryError where the home's documents have no such metadata: no peer is to know that."""
        number, filter = spec.num_documents(spec.home), spec.filter(spec.home)
        if number and filter:
            home = self._sites[spec.home]
            if refusal := await home.call("retriever", "find_refusal", spec.search_text, number, filter):
                sentence, code, option = refusal
                raise QueryError(sentence, code=Code(code), option=option or None)

    async def _give_up(self, spec: SessionSpec) -> None:
        """Cancel a query, without waiting long for a party that is lost."""
        with contextlib.suppress(TandemError, TimeoutError):
            call = self._sites[spec.home].call("draft_queue", "cancel", spec.session)
            await asyncio.wait_for(call, RPC_GRACE_S)

    async def _events(self, spec: SessionSpec, limit_s: float, at_once: bool) -> AsyncGenerator[Event, None]:
        """The home party's events in order, with each party's sources as soon as they are known."""
        deadline_s = time.monotonic() + limit_s
        site = self._sites[spec.home]
        sources = [asyncio.ensure_future(self._sources(party, spec, limit_s)) for party in spec.parties]
        position = num_tokens = 0
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                wait_s = min(EVENTS_WAIT_S, left_s)
                # `wait_for` would take a task for each call
                async with asyncio.timeout(left_s + RPC_GRACE_S):
                    events = await site.call("draft_queue", "events", spec.session, position, wait_s, at_once)
                position += len(events)
                num_tokens += sum(isinstance(event, TokenEvent) for event in events)
                is_done = any(isinstance(event, DoneEvent) for event in events)
                if is_done and sources:
                    await asyncio.wait(sources, timeout=min(_patience_s(events[-1]), limit_s))
                arrived = [task for task in sources if task.done()]
                for waiting in arrived:
                    sources.remove(waiting)
                    retrieved = await waiting
                    if retrieved is not None:
                        yield retrieved
                for event in events:
                    yield event
                if is_done:
                    return
                if events or arrived:
                    deadline_s = time.monotonic() + limit_s
                elif time.monotonic() > deadline_s:
                    raise TimeoutError
        except TimeoutError:
            if not num_tokens:
                raise QueryError(
                    f"An answer must begin within {limit_s:g} s, this one did not; raise timeout_s, or see `tandem "
                    "status`.",
                    code=Code.TIMEOUT,
                ) from None
            for event in await self._cut(spec, position, num_tokens, limit_s):
                yield event
        finally:
            for task in sources:
                task.cancel()
            await asyncio.gather(*sources, return_exceptions=True)

    async def _cut(self, spec: SessionSpec, position: int, num_tokens: int, limit_s: float) -> list[Event]:
        """Cancel an answer that fell silent; the rest of its events, which end it as if it had its length."""
        await self._give_up(spec)
        rest = list[Event]()
        with contextlib.suppress(TandemError, TimeoutError):
            async with asyncio.timeout(2 * RPC_GRACE_S):
                rest = await self._sites[spec.home].call(
                    "draft_queue", "events", spec.session, position, RPC_GRACE_S, True
                )
        if not rest or not isinstance(done := rest.pop(), DoneEvent):
            done = DoneEvent(reason="cancelled", statistics=SessionStatistics(num_tokens=num_tokens))
        if done.reason == "cancelled":
            silence = (
                f"The answer ends after {num_tokens} tokens, since nothing came for {limit_s:g} s; raise timeout_s, or "
                "see `tandem status`."
            )
            done = replace(done, reason="length", error=silence, session=spec.session)
        return [*rest, done]

    async def _sources(self, party: str, spec: SessionSpec, limit_s: float) -> SourcesEvent | None:
        event: SourcesEvent | None = None
        with contextlib.suppress(TandemError):  # the answer can go on without this party
            home = self._sites[spec.home]
            event = await home.call("draft_queue", "sources", spec.session, limit_s, party)
        if event is None or party != spec.home:
            return event
        with contextlib.suppress(TandemError):
            passages = await self._sites[party].passages([source.id for source in event.sources])
            sources = (
                replace(source, **passage) for source, passage in zip(event.sources, passages, strict=True)
            )
            event = replace(event, sources=tuple(sources))
        return event


def _patience_s(done: Event) -> float:
    """The wait of a finished answer for its sources: not long if a party was lost."""
    assert isinstance(done, DoneEvent)
    is_whole = done.reason != "failed" and done.statistics.degraded_from is None
    return SOURCES_WAIT_S if is_whole else LOST_SOURCES_WAIT_S


STDIN = "-"
"""The name of standard input, in the place of a file."""
BatchProgress: TypeAlias = Callable[[int, int], object]
"""Called with the number of questions that are finished, and of all."""
SESSIONS_PER_QUESTION = 2
"""A finished query may still be closing at the other party while the next one opens."""


def find_support(question: str, events: Sequence[Event]) -> Support | None:
    """Whether the passages of the home that an answer cites say it; None: nobody can tell here."""
    sources = [source for event in events if isinstance(event, SourcesEvent) for source in event.sources]
    return judge(question, cited_tokens(events), sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """The outcome of one question of a batch: an answer or an error."""

    index: int  # position among the questions, from 0
    question: str
    answer: Answer | None = None
    error: Exception | None = None

    def result(self) -> Answer:
        """The answer. Raises the error where there is none."""
        if self.answer is not None:
            return self.answer
        raise self.error or QueryError(f"Question {self.index} has no answer.")


def list_questions(questions: Iterable[str]) -> list[str]:
    """The questions of a batch. Raises QueryError for a single text or what cannot be iterated."""
    if isinstance(questions, str) or not isinstance(questions, Iterable):
        raise QueryError(
            f"The questions of a batch are a list of texts, but they are {questions!r:.100}; give a list."
        )
    return list(questions)


def bounded(concurrency: int, max_sessions: int) -> int:
    """The number of questions that are open at once, so that no party refuses one. Raises ConfigError."""
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigError(
            f"concurrency must be a whole number of at least 1, but it is {concurrency!r}; correct it."
        )
    return min(concurrency, max(1, max_sessions // SESSIONS_PER_QUESTION))


async def answer_all(
    questions: Sequence[str],
    ask: Callable[[str], Awaitable[Answer]],
    concurrency: int,
    progress: BatchProgress | None = None,
) -> AsyncGenerator[BatchItem, None]:
    """An item per question as it finishes; leaving early cancels those that are open, and none is asked any more."""
    places = asyncio.Semaphore(concurrency)

    async def answer(index: int, question: str) -> BatchItem:
        async with places:
            try:
                return BatchItem(index=index, question=question, answer=await ask(question))
            except Exception as error:  # it does not keep the others from being asked
                return BatchItem(index=index, question=question, error=error)

    tasks = [asyncio.create_task(answer(index, question)) for index, question in enumerate(questions)]
    try:
        for num_finished, done in enumerate(asyncio.as_completed(tasks), 1):
            item = await done
            if progress is not None:
                progress(num_finished, len(questions))
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- lists of questions: one per line, or JSON lines with the field "question" ----------------------------------


def check_question(question: object) -> None:
    """Raises QueryError for what is no text, or an empty one."""
    if not isinstance(question, str):
        raise QueryError(f"A question is a text, but it is {question!r:.100}; give a str.", option="question")
    if not question.strip():
        raise QueryError(f"The question is empty (got {question!r:.100}); ask something.", option="question")


def read_texts(file: str) -> list[str]:
    """The questions of a UTF-8 file, or of standard input, in order; empty lines are left out. Raises QueryError."""
    return [
        text_of(entry_of(line, where), where) if line[0] == "{" else line for line, where in read_lines(file)
    ]


def read_lines(file: str | Path) -> list[tuple[str, str]]:
    """The lines of a UTF-8 file, or of standard input, that hold anything, stripped, each with its place; at least one.
    Raises QueryError."""
    name = "standard input" if file == STDIN else str(Path(file))
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).expanduser().read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise QueryError(
            f"Questions are read from a text file, but {name} cannot be read ({error.strerror}); check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise QueryError(
            f"Questions must be UTF-8 text, but {name} is not (byte {error.start}); save it as UTF-8."
        ) from None
    entries = [
        (line.strip(), f"{name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not entries:
        raise QueryError(
            f'A list of questions must hold at least one line, but {name} holds none; add {{"question": "..."}}, '
            "or the bare text."
        )
    return entries


def entry_of(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line. Raises QueryError."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise QueryError(
            f"{where}: each line must be a JSON object, this is not ({error}); correct it."
        ) from None
    if not isinstance(entry, dict):
        raise QueryError(
            f"{where}: each line must be a JSON object, this is of type {type(entry).__name__}; correct it."
        )
    return entry


def text_of(entry: dict[str, Any], where: str) -> str:
    """The question of a JSON object. Raises QueryError."""
    if "question" not in entry:
        names = ", ".join(map(repr, entry)) or "nothing"
        raise QueryError(f'{where}: an object must hold "question", this one holds {names:.100}; rename it.')
    text = entry["question"]
    if not (isinstance(text, str) and text.strip()):
        raise QueryError(f'{where}: "question" must be a text that is not empty, it is {text!r}; correct it.')
    return text.strip()
