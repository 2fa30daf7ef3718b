"""Answers a decoder's requests from a retriever: the one step from messages to an index and back.

Knows messages and retrievers; nothing of actors, or of who sends what where.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tandem.errors import FilterError, TandemError
from tandem.protocol.messages import (
    RescoreRequest,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
)

if TYPE_CHECKING:
    from tandem.retrieval.langchain import StoreRetriever
    from tandem.retrieval.retriever import Hit, Retriever


def searched(
    source: Retriever | StoreRetriever, request: RetrieveRequest
) -> tuple[RetrieveResult, list[Hit]]:
    """The documents of a query, as a message that lacks the time it took, and as they are. Raises TandemError."""
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


def scored(source: Retriever | StoreRetriever, request: RescoreRequest) -> RescoreResult:
    """The relevance of a query's documents by now. Raises TandemError."""
    scores = source.relevance(request.ids, request.text)
    return RescoreResult(session=request.session, digest=request.digest, scores=tuple(scores))


def refused(request: RetrieveRequest | RescoreRequest, error: TandemError) -> RetrieveFailed:
    """Why there is no answer, and whether what was asked for is at fault."""
    return RetrieveFailed(
        session=request.session, reason=str(error), is_refused=isinstance(error, FilterError)
    )
