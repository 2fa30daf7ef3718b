"""The documents that an evaluation uses for one query, on either side, and how relevant each is.

Each side has its own index, or both have halves of what one corpus gives: the cloud the better half, the device the
other (DRAGON 7.2). Knows retrievers, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.protocol.drafting import JOINT
from tandem.retrieval.retriever import Hit, Retriever
from tandem.side import SIDES, Side

if TYPE_CHECKING:
    from tandem.retrieval.langchain import StoreRetriever


@dataclass(frozen=True, slots=True, order=True)
class Counts:
    """How many documents each side uses."""

    device: int
    cloud: int

    def of(self, side: Side) -> int:
        """Those of one side."""
        return self.device if side is Side.DEVICE else self.cloud


@dataclass(slots=True)
class Found:
    """What was found for one query. A document is named by its place in `texts`."""

    texts: tuple[str, ...]
    ranked: dict[Side, tuple[int, ...]]  # best first; with halves, both sides' are all documents
    is_halved: bool
    estimate: Callable[[str], list[float]]  # scores of all documents for a text
    _scores: dict[str, list[float]] = field(default_factory=dict)

    def documents(self, side: Side, counts: Counts) -> tuple[int, ...]:
        """The documents of one side, best first."""
        own, ranked = counts.of(side), self.ranked[side]
        first = counts.cloud if self.is_halved and side is Side.DEVICE else 0
        return ranked[first : first + own]

    def scores(self, text: str) -> list[float]:
        """Score of every document for a text, computed once."""
        if text not in self._scores:
            self._scores[text] = self.estimate(text)
        return self._scores[text]

    def joined(self, documents: Sequence[int], query: str) -> str:
        """Documents as one text for context aggregation, best first by their scores for the query."""
        scores = self.scores(query) if documents else []
        ordered = sorted(documents, key=lambda document: -scores[document])
        return JOINT.join(self.texts[document] for document in ordered)


def search(
    retrievers: Mapping[Side, Retriever | StoreRetriever],
    query: str,
    most: Counts,
    *,
    is_halved: bool,
    clip: Callable[[str], str] = lambda text: text,
) -> Found:
    """Documents of both sides for `query`. most: the largest numbers that will be asked for.

    is_halved: both sides share the device's retriever. clip: cuts a document to its longest permitted length.
    """
    if is_halved:
        retriever = retrievers[Side.DEVICE]
        hits = {Side.DEVICE: _hits(retriever, query, most.device + most.cloud)}
        ranked = dict.fromkeys(SIDES, tuple(range(len(hits[Side.DEVICE]))))
    else:
        hits = {side: _hits(retrievers[side], query, most.of(side)) for side in SIDES}
        num_device = len(hits[Side.DEVICE])
        ranked = {
            Side.DEVICE: tuple(range(num_device)),
            Side.CLOUD: tuple(range(num_device, num_device + len(hits[Side.CLOUD]))),
        }

    def estimate(text: str) -> list[float]:
        scores: list[float] = []
        for side, found in hits.items():
            scores += retrievers[side].relevance([hit.id for hit in found], text)
        return scores

    texts = tuple(clip(hit.document.page_content) for found in hits.values() for hit in found)
    return Found(texts, ranked, is_halved, estimate)


def _hits(retriever: Retriever | StoreRetriever, query: str, count: int) -> list[Hit]:
    return retriever.search(query, count) if count else []
