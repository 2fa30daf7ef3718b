"""The documents that an evaluation uses for one query, on either side, and how relevant each is.

Knows retrievers, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from tandem.protocol.decoding import JOINT
from tandem.retrieval.retriever import DocumentSearch, Hit
from tandem.topology import PARTIES, Party
from tandem_lab.errors import EvaluationError

MAX_CHUNKS = 100
"""Of one document that holds an answer."""


@dataclass(frozen=True, slots=True, order=True)
class Counts:
    """How many documents each side uses."""

    device: int
    cloud: int

    def of(self, party: Party) -> int:
        """Those of one side."""
        return self.device if party is Party.DEVICE else self.cloud


@dataclass(slots=True)
class DocumentSet:
    """What was found for one query. A document is named by its place in `texts`."""

    texts: tuple[str, ...]
    ranked: dict[Party, tuple[int, ...]]  # best first
    scores: Callable[[], list[float]]  # of all documents for the query
    ranked_again: Mapping[tuple[Party, int], tuple[int, ...]] = field(default_factory=dict)
    # by side and number searched for, where a scoring model ranks the nearest again: fewer are not the first of more
    num_passages: int = 0  # how many are the best of both sides
    right: tuple[int, ...] = ()  # those that hold the answer, where that was asked for

    def documents(self, party: Party, counts: Counts) -> tuple[int, ...]:
        """The documents of one side, best first."""
        return self._first(party, counts.of(party))

    def of_one_prompt(self, parties: Sequence[Party], counts: Counts, pick: str) -> tuple[int, ...]:
        """The documents that one row holds. pick: as `Method.pick` has it; "" for all those of the parties."""
        if pick == "right":
            return self.right
        if pick == "each":
            return tuple(place for party in parties for place in self.ranked[party][:1])
        if pick == "best":
            passages = {place for party in parties for place in self._first(party, self.num_passages)}
            scores = self.scores()
            return tuple(sorted(passages, key=lambda place: (-scores[place], place))[: self.num_passages])
        return tuple(place for party in parties for place in self.documents(party, counts))

    def join_texts(self, documents: Sequence[int]) -> str:
        """Documents as one text for context aggregation, best first by their scores for the query."""
        scores = self.scores() if documents else []
        ordered = sorted(documents, key=lambda document: -scores[document])
        return JOINT.join(self.texts[document] for document in ordered)

    def _first(self, party: Party, number: int) -> tuple[int, ...]:
        """The best of a search for so many."""
        return self.ranked_again.get((party, number), self.ranked[party])[:number]


def search(
    retrievers: Mapping[Party, DocumentSearch],
    query: str,
    counts: Sequence[Counts],
    *,
    num_passages: int = 0,
    sources: Sequence[str] = (),
) -> DocumentSet:
    """Documents of both sides for `query`. counts: all numbers that will be asked for.

    num_passages: how many of those sides together that use any will be asked for. sources: documents that hold the
    answer, as "cloud/name.md", or "name.md" for the device's. EvaluationError for one that is not in that side's index.
    """
    texts: list[str] = []
    ids: dict[Party, dict[str, int]] = {}  # the places of what was found
    ranked: dict[Party, tuple[int, ...]] = {}
    ranked_again: dict[tuple[Party, int], tuple[int, ...]] = {}
    right: list[int] = []
    for party in PARTIES:
        retriever, places = retrievers[party], ids.setdefault(party, {})

        def place(hits: Sequence[Hit], places: dict[str, int] = places) -> tuple[int, ...]:
            for hit in hits:
                if hit.id not in places:
                    places[hit.id] = len(texts)
                    texts.append(hit.document.page_content)
            return tuple(places[hit.id] for hit in hits)

        used = {each.of(party) for each in counts}
        numbers = sorted(used | {num_passages} if any(used) else used)  # pages that are not used are not read
        for number in numbers if retriever.ranks_again else numbers[-1:]:
            hits = retriever.search(query, number) if number else []
            ranked[party] = ranked_again[party, number] = place(hits)
        right += place(_named(retriever, party, query, sources))

    @cache
    def scores() -> list[float]:
        return [
            score
            for party, places in ids.items()
            for score in retrievers[party].relevance(list(places), query)
        ]

    return DocumentSet(tuple(texts), ranked, scores, ranked_again, num_passages, tuple(right))


def _named(retriever: DocumentSearch, party: Party, query: str, sources: Sequence[str]) -> list[Hit]:
    """All of the documents named that this side has. Raises EvaluationError for one that it lacks."""
    named: list[Hit] = []
    for source in sources:
        owner, _, name = source.partition("/")
        if owner not in list(PARTIES):
            owner, name = Party.DEVICE, source
        if owner != party:
            continue
        hits = retriever.search(query, MAX_CHUNKS, filter={"source": name})
        if not hits:
            raise EvaluationError(
                f"The question {query!r} names the source {source}, which the {party}'s index does not hold; correct "
                "it, or use the documents that belong to the questions."
            )
        named += hits
    return named
