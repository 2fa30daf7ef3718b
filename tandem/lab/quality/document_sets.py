"""The documents that an evaluation uses for one query, on either side, and how relevant each is.

Each side has its own index, or both have halves of what one corpus gives: the cloud the better half, the device the
other (DRAGON 7.2). Knows retrievers, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.lab.baselines.documents import JOINT
from tandem.retrieval.retriever import Hit, Retriever
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.retrieval.langchain import StoreRetriever


@dataclass(frozen=True, slots=True, order=True)
class Counts:
    """How many documents each side uses."""

    device: int
    cloud: int

    def of(self, party: Party) -> int:
        """Those of one side."""
        return self.device if party is Party.DEVICE else self.cloud

    def num_searched(self, party: Party, *, is_halved: bool) -> int:
        """How many are searched for; of halves, both sides' at once."""
        return self.device + self.cloud if is_halved else self.of(party)


@dataclass(slots=True)
class DocumentSet:
    """What was found for one query. A document is named by its place in `texts`."""

    texts: tuple[str, ...]
    ranked: dict[Party, tuple[int, ...]]  # best first; with halves, both sides' are all documents
    is_halved: bool
    estimate: Callable[[str], list[float]]  # scores of all documents for a text
    ranked_again: Mapping[tuple[Party, int], tuple[int, ...]] = field(default_factory=dict)
    # by side and number searched for, where a scoring model ranks the nearest again: fewer are not the first of more
    _scores: dict[str, list[float]] = field(default_factory=dict)

    def documents(self, party: Party, counts: Counts) -> tuple[int, ...]:
        """The documents of one side, best first."""
        own, number = counts.of(party), counts.num_searched(party, is_halved=self.is_halved)
        ranked = self.ranked_again.get((party, number), self.ranked[party])
        first = counts.cloud if self.is_halved and party is Party.DEVICE else 0
        return ranked[first : first + own]

    def scores(self, text: str) -> list[float]:
        """Score of every document for a text, computed once."""
        if text not in self._scores:
            self._scores[text] = self.estimate(text)
        return self._scores[text]

    def join_texts(self, documents: Sequence[int], query: str) -> str:
        """Documents as one text for context aggregation, best first by their scores for the query."""
        scores = self.scores(query) if documents else []
        ordered = sorted(documents, key=lambda document: -scores[document])
        return JOINT.join(self.texts[document] for document in ordered)


def search(
    retrievers: Mapping[Party, Retriever | StoreRetriever],
    query: str,
    counts: Sequence[Counts],
    *,
    is_halved: bool,
    clip: Callable[[str], str] = lambda text: text,
) -> DocumentSet:
    """Documents of both sides for `query`. counts: all numbers that will be asked for.

    is_halved: both sides share the device's retriever. clip: cuts a document to its longest permitted length.
    """
    texts: list[str] = []
    ids: dict[Party, dict[str, int]] = {}  # the places of what was found
    ranked: dict[Party, tuple[int, ...]] = {}
    ranked_again: dict[tuple[Party, int], tuple[int, ...]] = {}
    for party in (Party.DEVICE,) if is_halved else PARTIES:
        retriever, places = retrievers[party], ids.setdefault(party, {})
        numbers = sorted({each.num_searched(party, is_halved=is_halved) for each in counts})
        for number in numbers if retriever.ranks_again else numbers[-1:]:
            hits = _hits(retriever, query, number)
            for hit in hits:
                if hit.id not in places:
                    places[hit.id] = len(texts)
                    texts.append(clip(hit.document.page_content))
            ranked[party] = ranked_again[party, number] = tuple(places[hit.id] for hit in hits)
    if is_halved:
        ranked[Party.CLOUD] = ranked[Party.DEVICE]
        ranked_again |= {(Party.CLOUD, number): each for (_, number), each in ranked_again.items()}

    def estimate(text: str) -> list[float]:
        scores: list[float] = []
        for party, places in ids.items():
            scores += retrievers[party].relevance(list(places), text)
        return scores

    return DocumentSet(tuple(texts), ranked, is_halved, estimate, ranked_again)


def _hits(retriever: Retriever | StoreRetriever, query: str, count: int) -> list[Hit]:
    return retriever.search(query, count) if count else []
