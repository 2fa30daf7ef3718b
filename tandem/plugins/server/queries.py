"""Queries of HTTP clients: how one is started, while it runs, and how many run at once."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import cached_property
from typing import Any

from fastapi import Request

from tandem.client.answers import fingerprint
from tandem.client.request import build_spec
from tandem.client.tandem import Tandem
from tandem.errors import Code, QueryError, TandemError
from tandem.events import DoneEvent, Event, TokenEvent
from tandem.plugins.server.document_store import DocumentStore
from tandem.plugins.server.http import NO_NAMES, RESPONSES, ApiError, ServerLimits, failure
from tandem.plugins.server.logs import log_failure
from tandem.plugins.server.metrics import Metrics, QueryObserver

BUFFERED_EVENTS = 1024  # that wait for a client that reads slowly; further ones wait at the query's home
FIRST_ESTIMATE_S = 1.0  # how long a query takes, until one has ended
MAX_RETRY_AFTER_S = 60
ESTIMATE_SHARE = 0.2  # of the last query's duration in the moving average


class RunningQuery:
    """The events of one query, which a task of its own reads into a bounded buffer: a client that reads slowly holds up
    neither the query nor others, and one that leaves ends the query however its own task was ended."""

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        on_event: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> None:
        """events: of `Tandem.astream`. on_event: sees each event as it happens. on_end: called once at the end."""
        self._buffer: asyncio.Queue[Event | TandemError | None] = asyncio.Queue(BUFFERED_EVENTS)
        self._head: list[Event] = []  # fetched ahead
        self._task = asyncio.create_task(self._read(events, on_event), name="query")
        self._task.add_done_callback(lambda _: on_end())

    async def close(self) -> None:
        """Cancel the query at all parties, unless it has ended."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))

    async def fetch_first_token(self) -> None:
        """Wait until the answer begins; until then a query that fails can be refused. Raises TandemError."""
        async for event in self:
            self._head.append(event)
            if isinstance(event, DoneEvent):
                event.check()
            if isinstance(event, TokenEvent | DoneEvent):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events in order. Raises TandemError."""
        while self._head:
            yield self._head.pop(0)
        while (item := await self._buffer.get()) is not None:
            if isinstance(item, TandemError):
                raise item
            yield item

    async def _read(self, events: AsyncGenerator[Event, None], on_event: Callable[[Event], None]) -> None:
        """Fill the buffer; its last item is None or an error."""
        last: TandemError | None = None
        loop = asyncio.get_running_loop()
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    await self._buffer.put(event)
                    loop.call_soon(on_event, event)  # after those that wait for it
        except TandemError as error:
            last = error
        except Exception as error:
            log_failure("a query", error)
            last = QueryError(f"The server failed on this query with {type(error).__name__}; see its log.")
        await self._buffer.put(last)


EMBEDDED_AT_ONCE = 8  # between such texts a query may search: a retriever serves one call at a time


class Service:
    """One Tandem as HTTP clients share it."""

    def __init__(self, tandem: Tandem, limits: ServerLimits, documents: DocumentStore | None = None) -> None:
        """documents: of the device, where its site runs in this process."""
        self.tandem = tandem
        self.limits = limits
        self.documents = documents
        self.metrics = Metrics()
        self.max_queries = limits.max_queries or 2 * tandem.config.cluster.max_sessions  # open at once
        self.num_open = 0  # of these
        self._duration_s = FIRST_ESTIMATE_S  # of a query
        self.named: set[str] = set()  # ignored fields that the log has named

    @property
    def system_prompt(self) -> str:
        """The configured system message of the model of the first party here, which answers clients."""
        return self.tandem.config.party(next(iter(self.tandem.sites))).system_prompt

    def thinking(self, options: Mapping[str, Any]) -> str:
        """Whether answers of that model begin with a thought: `Template.thinking`. Those of pieces never do."""
        about = self.tandem.described[next(iter(self.tandem.sites))]
        return "" if about.get("pieces") and not options.get("only") else str(about.get("thinking", ""))

    @property
    def embedders(self) -> list[str]:
        """The embedder of the first party here that has documents; empty if there is none."""
        names = [self.tandem.described[party].get("embedder") for party in self.tandem.sites]
        return [str(name) for name in names if name][:1]

    @cached_property
    def fingerprint(self) -> str:
        """Equal for servers whose answers are equal, given seed and documents."""
        return fingerprint(self.tandem.described)

    def start(
        self, question: str, options: dict[str, Any], names: Mapping[str, str] = NO_NAMES
    ) -> RunningQuery:
        """Start a query. options: of `Tandem.astream`. names: of `failure`.

        Raises ApiError: 400 for wrong options, 429 where too many queries are open.
        """
        try:
            build_spec(self.tandem.config, self.tandem.described, question, **options)
        except TandemError as error:
            raise failure(error, names, RESPONSES[Code.INVALID]) from None
        if self.num_open >= self.max_queries:
            self.metrics.queries_refused.inc()
            seconds = str(min(MAX_RETRY_AFTER_S, math.ceil(self._duration_s)))
            message = (
                f"{self.num_open} queries are open, as many as this server takes at once (two for each of "
                f"cluster.max_sessions); try again in {seconds} s."
            )
            raise ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": seconds})
        if options.get("system_prompt") is not None:
            self.metrics.own_system_prompts.inc()
        self.num_open += 1
        observer = QueryObserver(self.metrics)

        def end() -> None:
            self.num_open -= 1
            self._duration_s += ESTIMATE_SHARE * (observer.on_end() - self._duration_s)

        return RunningQuery(self.tandem.astream(question, **options), observer.on_event, end)

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors, one per text. Raises TandemError."""
        sites = self.tandem.sites
        holder = next(party for party in sites if self.tandem.described[party].get("embedder"))
        parts = [texts[first : first + EMBEDDED_AT_ONCE] for first in range(0, len(texts), EMBEDDED_AT_ONCE)]
        return [vector for part in parts for vector in await sites[holder].embed(part)]


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    service: Service = request.app.state.service
    return service
