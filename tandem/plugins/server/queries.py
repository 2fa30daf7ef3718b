"""Queries of HTTP clients: how one is started, while it runs, and how many run at once."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import Request

from tandem.client.answers import fingerprint
from tandem.client.request import build_spec
from tandem.errors import QueryError, TandemError
from tandem.events import DoneEvent, Event, TokenEvent
from tandem.plugins.server.document_store import DocumentStore
from tandem.plugins.server.http import NO_NAMES, ApiError, ServerLimits, busy, refusal
from tandem.plugins.server.logs import log_failure
from tandem.plugins.server.metrics import Metrics, QueryObserver

if TYPE_CHECKING:
    from tandem.client.tandem import Tandem

BUFFERED_EVENTS = 1024
"""Events that wait for a client that reads slowly; further ones wait at the query's home."""
FIRST_ESTIMATE_S = 1.0
"""How long a query takes, until one has ended."""
MAX_RETRY_AFTER_S = 60
ESTIMATE_SHARE = 0.2
"""Weight of the last query's duration in the moving average."""


class QueryLimit:
    """Admits so many queries at once; one more is refused, and told when to try again."""

    def __init__(self, max_queries: int) -> None:
        self.max_queries = max_queries
        self.num_open = 0
        self._duration_s = FIRST_ESTIMATE_S

    def acquire(self) -> Callable[[], None]:
        """Take a place; call the result once to give it back. Raises ApiError (429) if there is none."""
        if self.num_open >= self.max_queries:
            retry_after_s = min(MAX_RETRY_AFTER_S, math.ceil(self._duration_s))
            raise busy(
                f"{self.num_open} queries are open, as many as this server takes at once (two for each of "
                f"cluster.max_sessions); try again in {retry_after_s} s.",
                retry_after_s,
            )
        self.num_open += 1
        start_s = time.monotonic()

        def release() -> None:
            self.num_open -= 1
            self._duration_s += ESTIMATE_SHARE * (time.monotonic() - start_s - self._duration_s)

        return release


class RunningQuery:
    """The events of one query, which a task of its own reads into a bounded buffer.

    So a client that reads slowly holds up neither the query nor others, and a client that leaves ends the query however
    its own task was ended. Close it, or use `async with`.
    """

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

    async def __aenter__(self) -> RunningQuery:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the query at all parties, unless it has ended."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))

    async def fetch_first_token(self) -> None:
        """Wait until the answer begins; until then a query that fails can be refused. Raises TandemError."""
        async for event in self._rest():
            self._head.append(event)
            if isinstance(event, DoneEvent):
                event.check()
            if isinstance(event, TokenEvent | DoneEvent):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events in order. Raises TandemError."""
        while self._head:
            yield self._head.pop(0)
        async for event in self._rest():
            yield event

    async def _rest(self) -> AsyncIterator[Event]:
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


EMBEDDED_AT_ONCE = 8
"""Texts between which a query may search: a retriever serves one call at a time."""


class Service:
    """One Tandem as HTTP clients share it."""

    def __init__(self, tandem: Tandem, limits: ServerLimits, documents: DocumentStore | None = None) -> None:
        """documents: of the device, where its site runs in this process."""
        self.tandem = tandem
        self.limits = limits
        self.documents = documents
        self.metrics = Metrics()
        self.queries = QueryLimit(limits.max_queries or 2 * tandem.config.cluster.max_sessions)
        self.named: set[str] = set()  # ignored fields that the log has named

    @property
    def home(self) -> str:
        """The party that runs here and answers clients."""
        return next(iter(self.tandem.sites))

    @property
    def system_prompt(self) -> str:
        """The configured system message of the model at home."""
        return self.tandem.config.party(self.home).system_prompt

    @property
    def thinking(self) -> str:
        """Whether answers of the model at home begin with a thought: `Template.thinking`."""
        return str(self.tandem.described[self.home].get("thinking", ""))

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
        """Start a query. options: of `Tandem.astream`. names: what the request calls them, if something else.

        Raises ApiError: 400 for wrong options, 429 where too many queries are open.
        """
        try:
            build_spec(self.tandem.config, self.tandem.described, question, **options)
        except TandemError as error:
            raise refusal(error, names) from None
        try:
            release = self.queries.acquire()
        except ApiError:
            self.metrics.queries_refused.inc()
            raise
        if options.get("system_prompt") is not None:
            self.metrics.own_system_prompts.inc()
        observer = QueryObserver(self.metrics)

        def end() -> None:
            release()
            observer.on_end()

        return RunningQuery(self.tandem.astream(question, **options), observer.on_event, end)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors, one per text. Raises TandemError."""
        sites = self.tandem.sites
        holder = next(party for party in sites if self.tandem.described[party].get("embedder"))
        vectors: list[list[float]] = []
        for first in range(0, len(texts), EMBEDDED_AT_ONCE):
            part = list(texts[first : first + EMBEDDED_AT_ONCE])
            vectors += await sites[holder].embed(part)
        return vectors


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    service: Service = request.app.state.service
    return service
