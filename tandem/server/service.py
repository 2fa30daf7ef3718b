"""What every route of the server uses: the parties that answer, the limit of queries, and how a query is started."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from fastapi import Request

from tandem.errors import TandemError
from tandem.request import build_spec
from tandem.server.document_store import DocumentStore
from tandem.server.errors import refusal
from tandem.server.queries import QueryLimit, RunningQuery

if TYPE_CHECKING:
    from tandem.client import Tandem

SEED_BITS = 53
"""Of a seed that the server chooses: the whole numbers that every reader of JSON can hold."""


class Service:
    """One Tandem as HTTP clients share it."""

    def __init__(self, tandem: Tandem, documents: DocumentStore | None = None) -> None:
        self.tandem = tandem
        self.documents = documents
        self.limits = tandem.config.http
        self.queries = QueryLimit(self.limits.max_queries)

    def start(self, question: str, options: dict[str, Any]) -> RunningQuery:
        """Start a query. options: of `Tandem.astream`. Raises ApiError: 400 for wrong ones, 429 where it is busy."""
        try:
            build_spec(self.tandem.config, self.tandem.described, question, **options)
        except TandemError as error:
            raise refusal(error, options) from None
        release = self.queries.acquire()
        return RunningQuery(self.tandem.astream(question, **options), _ignore, release)


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    service: Service = request.app.state.service
    return service


def new_seed() -> int:
    """For an answer whose seed nobody gave."""
    return secrets.randbits(SEED_BITS)


def _ignore(event: object) -> None:
    """Nothing observes it."""
