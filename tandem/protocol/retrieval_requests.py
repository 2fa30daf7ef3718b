"""Answers a decoder's requests from whatever finds documents: the one step from messages to an index and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from tandem.errors import FilterError, TandemError
from tandem.protocol.messages import (
    RescoreRequest,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
)


class DocumentSource(Protocol):
    """What these functions ask of a retriever."""

    def search(
        self, query: str, k: int, given_texts: Sequence[str] = (), *, filter: Any = None
    ) -> Sequence[Any]:
        """The hits for a query, best first: `id`, `document` and `score` each."""

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """The score of each document for a text."""


def search_documents(
    source: DocumentSource, request: RetrieveRequest
) -> tuple[RetrieveResult, Sequence[Any]]:
    """The documents of a query, as a message that lacks the time it took, and as hits. Raises TandemError."""
    filter = json.loads(request.filter) if request.filter else None
    hits = source.search(request.query, request.num_documents, request.given_texts, filter=filter)
    found = RetrieveResult(
        session=request.session,
        ids=tuple(hit.id for hit in hits),
        texts=tuple(hit.document.page_content for hit in hits),
        scores=tuple(hit.score for hit in hits),
        retrieve_us=0,
    )
    return found, hits


def score_documents(source: DocumentSource, request: RescoreRequest) -> RescoreResult:
    """The current relevance of a query's documents. Raises TandemError."""
    scores = source.relevance(request.ids, request.text)
    return RescoreResult(session=request.session, digest=request.digest, scores=tuple(scores))


def refuse_request(request: RetrieveRequest | RescoreRequest, error: TandemError) -> RetrieveFailed:
    """Why there is no answer, and whether the request is at fault."""
    return RetrieveFailed(
        session=request.session, reason=str(error), is_refused=isinstance(error, FilterError)
    )
