"""Finds the documents for a query, and scores how relevant each is to any later text.

Joins an index, an embedder and, where there is one, a scoring model; what the scores become is decided elsewhere.
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
from tandem.retrieval.following import FollowedIndex
from tandem.retrieval.index import Index
from tandem.retrieval.scoring import Scorer
from tandem.retrieval.tables import Filter
from tandem.retrieval.vectors import cosines


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a search found."""

    id: str  # opaque and stable: the other side may see it
    document: Document  # stays on this side
    score: float  # of the scoring model: for the embedder the cosine of document and query, -1 to 1


class Retriever:
    """Search and relevance over one index, which each search opens again if it changed on disk."""

    def __init__(
        self, index: Index, embedder: TextEmbedder, scorer: Scorer | None = None, *, num_threads: int = 1
    ) -> None:
        """RetrievalError if the embedder's vectors do not fit the index. scorer: None is the embedder's cosine.

        num_threads: for searches once the index was opened again.
        """
        if embedder.dimension != index.dimension:
            raise RetrievalError(
                f"The index holds vectors of dimension {index.dimension}, but the embedder {embedder.name} "
                "gives "
                f"{embedder.dimension}; use {index.manifest.embedder}, or build the index again with "
                "`tandem index`."
            )
        self._followed = FollowedIndex(index, embedder.fingerprint, num_threads)
        self._embedder = embedder
        self._scorer = scorer

    @classmethod
    def open(cls, directory: Path, embedder: TextEmbedder, *, num_threads: int = 1) -> Retriever:
        """A retriever over the index in a folder; RetrievalError if it is damaged or of another embedder."""
        index = Index.open(directory, embedder.fingerprint, num_threads=num_threads)
        return cls(index, embedder, num_threads=num_threads)

    @property
    def index(self) -> Index:
        """The index that the last search used."""
        return self._followed.current

    def close(self) -> None:
        """Frees the files; nothing can be searched afterwards."""
        self._followed.close()

    @property
    def ranks_again(self) -> bool:
        """Whether a scoring model ranks the nearest again, so that the k best are not the first of more."""
        return self._scorer is not None

    @property
    def num_documents(self) -> int:
        """Chunks that can be found."""
        return len(self.index)

    @property
    def kind(self) -> str:
        """What searches them: a FAISS factory string."""
        return self.index.manifest.factory

    def search(
        self, query: str, k: int, given_texts: Sequence[str] = (), *, filter: Filter | None = None
    ) -> list[Hit]:
        """The k documents nearest to the query, best first (fewer if the index holds or finds fewer).

        given_texts: documents of no index; they follow in their order, scored alike, as given-1, given-2, ...
        filter: metadata that each hit must have, as {"source": "a.txt", "page": [1, 2]}; k hits are returned if
        that many have it. Scores are those that `relevance` gives for the query: with a scoring model of its own the k
        nearest are ranked again by it. RetrievalError for a query without text, k < 1 without given_texts, or a
        metadata key that no document has.
        """
        if not query.strip():
            raise RetrievalError(f"The query is empty (got {query!r}); ask something.")
        vector = self._embed(query)
        hits = [] if k == 0 and given_texts else self._nearest(query, vector, k, filter)
        return hits + score_texts(given_texts, query, vector, self._embedder, self._scorer)

    def _nearest(self, query: str, vector: NDArray[np.float32], k: int, filter: Filter | None) -> list[Hit]:
        index = self._followed.refresh()
        rows, scores = index.search(vector, k, filter)
        documents = index.documents(rows)
        self._followed.note([str(document.id) for document in documents])
        if self._scorer is not None:
            scores = np.asarray(self._scorer.scores(query, [document.page_content for document in documents]))
            order = np.lexsort((rows, -scores))
            documents, scores = [documents[place] for place in order], scores[order]
        return [
            Hit(str(document.id), document, score)
            for document, score in zip(documents, scores.tolist(), strict=True)
        ]

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """R(d, text): the score of each document for a text, say question plus answer so far (DRAGON 4.1).

        A function of the documents, the text and the scoring model alone: no other id changes a score's bits. Of
        a text beyond the model's length the end counts. What a search found stays known when the index changes.
        RetrievalError if an id is not of this index.
        """
        if not ids:
            return []
        if self._scorer is not None:
            return self._scorer.scores(text, self._followed.texts(ids))
        return [float(score) for score in cosines(self._followed.vectors(ids), self._embed(text))]

    def _embed(self, text: str) -> NDArray[np.float32]:
        """The unit vector [d] of one text, embedded alone, so that its bits do not depend on others."""
        vector: NDArray[np.float32] = self._embedder.embed([text], keep_end=True)[0]
        return vector


def score_texts(
    texts: Sequence[str],
    query: str,
    vector: NDArray[np.float32],
    embedder: TextEmbedder,
    scorer: Scorer | None,
) -> list[Hit]:
    """Texts of no index as documents, in their order, scored as those of an index are; vector [d]: the query's."""
    if not texts:
        return []
    if scorer is not None:
        scores = np.asarray(scorer.scores(query, texts), np.float64)
    else:
        scores = cosines(embedder.embed(list(texts)), vector)
    documents = [Document(page_content=text, id=f"given-{n}") for n, text in enumerate(texts, 1)]
    return [
        Hit(str(document.id), document, float(score))
        for document, score in zip(documents, scores, strict=True)
    ]
