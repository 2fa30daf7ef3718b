"""Finds the documents for a query, and says how relevant each is to any later text.

Joins an index, an embedder and, where there is one, a scoring model. Knows nothing of sides, sessions or weights: it
returns scores, and what they become is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index
from tandem.retrieval.scoring import Scorer


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found."""

    id: str  # opaque and stable: fit to be shown to the other side
    document: Document  # stays on this side
    score: float  # of the scoring model: for the embedder the cosine of document and query, -1 to 1


class Retriever:
    """Search and relevance over one index."""

    def __init__(self, index: Index, embedder: TextEmbedder, scorer: Scorer | None = None) -> None:
        """RetrievalError if the embedder's vectors do not fit the index. scorer: None is the embedder's cosine."""
        if embedder.dimension != index.dimension:
            raise RetrievalError(
                f"The index holds vectors of dimension {index.dimension}, but the embedder {embedder.name} "
                "gives "
                f"{embedder.dimension}; use {index.manifest.embedder}, or build the index again with "
                "`tandem index`."
            )
        self.index = index
        self._embedder = embedder
        self._scorer = scorer

    @classmethod
    def open(cls, directory: Path, embedder: TextEmbedder, *, num_threads: int = 1) -> Retriever:
        """A retriever over the index in a folder; RetrievalError if it is damaged or of another embedder."""
        return cls(Index.open(directory, embedder.fingerprint, num_threads=num_threads), embedder)

    def search(self, query: str, k: int, given_texts: Sequence[str] = ()) -> list[Hit]:
        """The k documents nearest to the query, best first (fewer if the index holds or finds fewer).

        Scores are those that `relevance` gives for the query, whatever FAISS approximates while searching; with a
        scoring model of its own the k nearest are ranked again by it.
        given_texts: documents of no index; they follow in their order, scored alike, as given-1, given-2, ...
        """
        if not query.strip():
            raise RetrievalError(f"A query must hold text, but it is {query!r}; ask something.")
        vector = self._embedded(query)
        return (self._nearest(query, vector, k) if k else []) + self._scored(given_texts, query, vector)

    def _nearest(self, query: str, vector: NDArray[np.float32], k: int) -> list[Hit]:
        rows, _ = self.index.search(vector, k)
        scores = self._scores(rows, query, vector)
        order = np.lexsort((rows, -scores))
        found = [(self.index.document(int(rows[place])), float(scores[place])) for place in order]
        return [Hit(str(document.id), document, score) for document, score in found]

    def _scored(self, texts: Sequence[str], query: str, vector: NDArray[np.float32]) -> list[Hit]:
        """Texts as documents, scored as those of an index are."""
        if not texts:
            return []
        if self._scorer is not None:
            scores = np.asarray(self._scorer.scores(query, texts), np.float64)
        else:
            scores = cosines(self._embedder.embed(list(texts)), vector)
        documents = [Document(page_content=text, id=f"given-{n}") for n, text in enumerate(texts, 1)]
        return [Hit(str(each.id), each, float(score)) for each, score in zip(documents, scores, strict=True)]

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """R(d, text): the score of each document for a text, say question plus answer so far (DRAGON 4.1).

        A function of the documents, the text and the scoring model alone: no other id changes a score's bits. Of
        a text beyond the model's length the end counts. RetrievalError if an id is not of this index.
        """
        if not ids:
            return []
        rows = self.index.rows(ids)
        vector = self._embedded(text) if self._scorer is None else None
        return [float(score) for score in self._scores(rows, text, vector)]

    def _scores(
        self, rows: NDArray[np.int64], text: str, vector: NDArray[np.float32] | None
    ) -> NDArray[np.float64]:
        """R(d, text) of the documents in `rows`; `vector` is the text's, which the scoring model does without."""
        if self._scorer is not None:
            texts = [self.index.document(int(row)).page_content for row in rows]
            return np.asarray(self._scorer.scores(text, texts), np.float64)
        assert vector is not None
        return cosines(self.index.vectors(rows), vector)

    def _embedded(self, text: str) -> NDArray[np.float32]:
        """The unit vector [d] of one text, embedded alone, so that its bits do not depend on others."""
        vector: NDArray[np.float32] = self._embedder.embed([text], keep_end=True)[0]
        return vector


def cosines(vectors: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of [n, d] to a vector [d], in double precision; 0 where one has no length.

    Summed row by row rather than by a matrix product, whose last bits depend on the number of rows.
    """
    rows, other = vectors.astype(np.float64), vector.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1) * (other * other).sum())
    products = (rows * other).sum(axis=1)
    result: NDArray[np.float64] = np.zeros_like(products)
    np.divide(products, lengths, out=result, where=lengths > 0)
    return result
