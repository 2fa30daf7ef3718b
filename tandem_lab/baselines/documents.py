"""Documents joined in one row, and texts that come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.aggregation.document_weights import log_weight
from tandem.protocol.decoding import JOINT
from tandem.retrieval.documents import Document
from tandem.retrieval.index import cosines
from tandem.retrieval.retriever import DocumentSearch, Hit


def concatenate(hits: Sequence[Hit], scale: float) -> list[Hit]:
    """All documents as one, in their order; its weight R = scale * score is what theirs amount to (DRAGON A.1)."""
    if not hits:
        return []
    text = JOINT.join(hit.document.page_content for hit in hits)
    sources = ", ".join(dict.fromkeys(str(hit.document.metadata.get("source", "")) for hit in hits))
    score = log_weight(tuple(scale * hit.score for hit in hits)) / scale
    document = Document(page_content=text, id="joined", metadata={"source": sources})
    return [Hit("joined", document, score)]


def score_texts(texts: Sequence[str], query: str, retriever: DocumentSearch) -> list[Hit]:
    """Texts of no index as documents, in their order, scored for the query as those that the retriever finds."""
    if not texts:
        return []
    if retriever.scorer is not None:
        scores = retriever.scorer.scores(query, texts)
    else:
        vector = retriever.embedder.embed([query], is_query=True)[0]
        scores = cosines(retriever.embedder.embed(texts), vector).tolist()
    documents = [Document(page_content=text, id=f"given-{number}") for number, text in enumerate(texts, 1)]
    return [Hit(str(each.id), each, float(score)) for each, score in zip(documents, scores, strict=True)]
