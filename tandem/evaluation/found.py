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

    def found(self, side: Side, *, is_halved: bool) -> int:
        """How many are searched for; of halves, both sides' at once."""
        return self.device + self.cloud if is_halved else self.of(side)


@dataclass(slots=True)
class Found:
    """What was found for one query. A document is named by its place in `texts`."""

    texts: tuple[str, ...]
    ranked: dict[Side, tuple[int, ...]]  # best first; with halves, both sides' are all documents
    is_halved: bool
    estimate: Callable[[str], list[float]]  # scores of all documents for a text
    ranked_again: Mapping[tuple[Side, int], tuple[int, ...]] = field(default_factory=dict)
    # by side and number searched for, where a scoring model ranks the nearest anew: fewer are not the first of more
    _scores: dict[str, list[float]] = field(default_factory=dict)

    def documents(self, side: Side, counts: Counts) -> tuple[int, ...]:
        """The documents of one side, best first."""
        own, number = counts.of(side), counts.found(side, is_halved=self.is_halved)
        ranked = self.ranked_again.get((side, number), self.ranked[side])
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
    counts: Sequence[Counts],
    *,
    is_halved: bool,
    clip: Callable[[str], str] = lambda text: text,
) -> Found:
    """Documents of both sides for `query`. counts: all numbers that will be asked for.

    is_halved: both sides share the device's retriever. clip: cuts a document to its longest permitted length.
    """
    texts: list[str] = []
    ids: dict[Side, dict[str, int]] = {}  # the places of what was found
    ranked: dict[Side, tuple[int, ...]] = {}
    ranked_again: dict[tuple[Side, int], tuple[int, ...]] = {}
    for side in (Side.DEVICE,) if is_halved else SIDES:
        retriever, places = retrievers[side], ids.setdefault(side, {})
        numbers = sorted({each.found(side, is_halved=is_halved) for each in counts})
        for number in numbers if retriever.ranks_again else numbers[-1:]:
            hits = _hits(retriever, query, number)
            for hit in hits:
                if hit.id not in places:
                    places[hit.id] = len(texts)
                    texts.append(clip(hit.document.page_content))
            ranked[side] = ranked_again[side, number] = tuple(places[hit.id] for hit in hits)
    if is_halved:
        ranked[Side.CLOUD] = ranked[Side.DEVICE]
        ranked_again |= {(Side.CLOUD, number): each for (_, number), each in ranked_again.items()}

    def estimate(text: str) -> list[float]:
        scores: list[float] = []
        for side, places in ids.items():
            scores += retrievers[side].relevance(list(places), text)
        return scores

    return Found(tuple(texts), ranked, is_halved, estimate, ranked_again)


def _hits(retriever: Retriever | StoreRetriever, query: str, count: int) -> list[Hit]:
    return retriever.search(query, count) if count else []
