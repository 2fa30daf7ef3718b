"""Answers a decoder's requests from whatever finds documents: the one step from messages to an index and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from tandem.messages import RetrieveRequest, RetrieveResult


class DocumentSource(Protocol):
    """The port by which these functions ask a retriever."""

    def search(self, query: str, k: int, *, filter: Any = None) -> Sequence[Any]:
        """The hits for a query, best first: `id`, `document` and `score` each."""


def find_documents(source: DocumentSource, request: RetrieveRequest) -> Sequence[Any]:
    """The hits for a query, best first. Raises TandemError."""
    filter = json.loads(request.filter) if request.filter else None
    return source.search(request.query, request.num_documents, filter=filter)


def to_result(request: RetrieveRequest, hits: Sequence[Any], retrieve_us: int = 0) -> RetrieveResult:
    """Hits as the message that carries them."""
    return RetrieveResult(
        session=request.session,
        ids=tuple(hit.id for hit in hits),
        texts=tuple(hit.document.page_content for hit in hits),
        scores=tuple(hit.score for hit in hits),
        retrieve_us=retrieve_us,
    )
