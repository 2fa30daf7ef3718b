"""Asks the site of a question's home party, and follows its events; the same wherever the site runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from tandem.errors import CallError, Code, QueryError, TandemError
from tandem.events import DoneEvent, Event, SourcesEvent
from tandem.modes.spec import SessionSpec
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
        self._tokenizer: Tokenizer | None = None

    async def ask(
        self, spec: SessionSpec, limit_s: float, *, at_once: bool, notes: tuple[str, ...] = ()
    ) -> AsyncGenerator[Event, None]:
        """Events of one query, as they happen or all at its end; leaving early cancels it at both parties.

        limit_s: for the whole answer. notes: more of them, about the home's documents. Raises QueryError.
        """
        if spec.home not in self._sites:
            raise QueryError(
                f"The {spec.home} answers by itself where its client is, which a join link does not reach; leave out "
                f'only={str(spec.home)!r}, or let it write every token with mode="speculative" and max_proposal=0.',
                option="only",
            )
        is_done, started_s = False, time.monotonic()
        try:
            spec = await self.fit(spec)
            await self._check_filter(spec)
            # Not awaited: the events will tell how it went.
            opening = asyncio.ensure_future(self._sites[spec.home].open(spec.as_for(spec.home).to_json()))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.sleep(0)  # it is under way before the first call for events
            async with contextlib.aclosing(self._events(spec, limit_s, at_once, started_s)) as events:
                async for event in events:
                    is_done = isinstance(event, DoneEvent)
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
        if self._tokenizer is None:
            site = next(iter(self._sites.values()))
            try:
                self._tokenizer = Tokenizer.from_str(await site.tokenizer_json())
            except CallError as error:
                raise QueryError(
                    await asyncio.to_thread(self._explain_loss, error), code=error.code
                ) from None
        encode = partial(self._tokenizer.encode_batch_fast, list(texts), add_special_tokens=False)
        return sum(len(encoding) for encoding in await asyncio.to_thread(encode))

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
            room = min(room, await self._sites[spec.home].answer_room(spec.to_json(), shortest))
        return replace(spec, sampling=replace(spec.sampling, max_new_tokens=room))

    async def _check_filter(self, spec: SessionSpec) -> None:
        """Raise QueryError where the home's documents have no such metadata: no peer is to know that."""
        number, filter = spec.num_documents(spec.home), spec.filter(spec.home)
        if number and filter:
            refusal = await self._sites[spec.home].find_refusal(spec.query, number, filter)
            if refusal:
                sentence, code, option = refusal
                raise QueryError(sentence, code=Code(code), option=option or None)

    async def _give_up(self, spec: SessionSpec) -> None:
        """Cancel a query, without waiting long for a party that is lost."""
        with contextlib.suppress(TandemError, TimeoutError):
            await asyncio.wait_for(self._sites[spec.home].cancel(spec.session), RPC_GRACE_S)

    async def _events(
        self, spec: SessionSpec, limit_s: float, at_once: bool, started_s: float
    ) -> AsyncGenerator[Event, None]:
        """The home party's events in order, with each party's sources as soon as they are known."""
        deadline_s = started_s + limit_s
        site = self._sites[spec.home]
        sources = [asyncio.ensure_future(self._sources(party, spec, limit_s)) for party in spec.parties]
        position = 0
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                call = site.events(spec.session, position, min(EVENTS_WAIT_S, left_s), at_once)
                async with asyncio.timeout(
                    left_s + RPC_GRACE_S
                ):  # `wait_for` would take a task for each call
                    events = await call
                position += len(events)
                is_done = any(isinstance(event, DoneEvent) for event in events)
                if is_done and sources:
                    await asyncio.wait(
                        sources, timeout=min(_patience_s(events[-1]), max(0.0, deadline_s - time.monotonic()))
                    )
                for waiting in [task for task in sources if task.done()]:
                    sources.remove(waiting)
                    retrieved = await waiting
                    if retrieved is not None:
                        yield retrieved
                for event in events:
                    yield event
                if is_done:
                    return
                if time.monotonic() > deadline_s:
                    raise TimeoutError
        except TimeoutError:
            raise QueryError(
                f"An answer must be complete within {limit_s:g} s, this one is not after {position} events; "
                "raise timeout_s, or see `tandem status`.",
                code=Code.TIMEOUT,
            ) from None
        finally:
            for task in sources:
                task.cancel()
            await asyncio.gather(*sources, return_exceptions=True)

    async def _sources(self, party: str, spec: SessionSpec, limit_s: float) -> SourcesEvent | None:
        event: SourcesEvent | None = None
        with contextlib.suppress(TandemError):  # the answer can go on without this party
            event = await self._sites[spec.home].sources(spec.session, limit_s, party)
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
