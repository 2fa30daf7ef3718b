"""What every route of the server uses: the parties that answer, the limit of queries, and how a query is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import Request

from tandem.client.answers import fingerprint
from tandem.client.request import build_spec
from tandem.config.schema import HttpConfig
from tandem.errors import TandemError
from tandem.events import Event
from tandem.server.document_store import DocumentStore
from tandem.server.errors import NO_NAMES, ApiError, refusal
from tandem.server.metrics import Metrics, QueryObserver
from tandem.server.queries import QueryLimit, RunningQuery
from tandem.server.tracing import QuerySpan

if TYPE_CHECKING:
    from tandem.client.tandem import Tandem

EMBEDDED_AT_ONCE = 8
"""Texts between which a query may search: a retriever serves one call at a time."""


class Service:
    """One Tandem as HTTP clients share it."""

    def __init__(self, tandem: Tandem, limits: HttpConfig, documents: DocumentStore | None = None) -> None:
        """documents: of the device, where its site runs in this process."""
        self.tandem = tandem
        self.limits = limits
        self.documents = documents
        self.metrics = Metrics()
        self.queries = QueryLimit(self.limits.max_queries)

    @property
    def home(self) -> str:
        """The party that runs here and answers clients."""
        return next(iter(self.tandem.actors))

    @property
    def system_prompt(self) -> str:
        """The system message for a chat model at home."""
        return self.tandem.config.party(self.home).system_prompt

    @property
    def embedders(self) -> list[str]:
        """The embedder of the first party here that has documents; empty if there is none."""
        names = [self.tandem.described[party].get("embedder") for party in self.tandem.actors]
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
        release = self._acquire()
        observer = QueryObserver(self.metrics)
        span = QuerySpan(str(options.get("mode") or self.tandem.config.decoding.mode))

        def on_event(event: Event) -> None:
            observer.on_event(event)
            span.on_event(event)

        def end() -> None:
            release()
            observer.on_end()
            span.on_end()

        return RunningQuery(self.tandem.astream(question, **options), on_event, end)

    def _acquire(self) -> Callable[[], None]:
        try:
            return self.queries.acquire()
        except ApiError:
            self.metrics.queries_refused.inc()
            raise

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors, one per text. Raises TandemError."""
        actors = self.tandem.actors
        holder = next(party for party in actors if self.tandem.described[party].get("embedder"))
        vectors: list[list[float]] = []
        for first in range(0, len(texts), EMBEDDED_AT_ONCE):
            part = list(texts[first : first + EMBEDDED_AT_ONCE])
            vectors += await actors[holder]["retriever"].embed.remote(part)
        return vectors


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    service: Service = request.app.state.service
    return service
