"""The documents that an evaluation uses for one query, on either side, and how relevant each is.

Each side has its own index, or both have halves of what one corpus gives: the cloud the better half, the device the
other (DRAGON 7.2). Knows retrievers, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.retrieval.retriever import Hit, Retriever
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.documents import JOINT
from tandem_lab.errors import EvaluationError

if TYPE_CHECKING:
    from tandem.retrieval.langchain import StoreRetriever

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
    num_passages: int = 0  # how many are the best of both sides
    right: tuple[int, ...] = ()  # those that hold the answer, where that was asked for
    _scores: dict[str, list[float]] = field(default_factory=dict)

    def documents(self, party: Party, counts: Counts) -> tuple[int, ...]:
        """The documents of one side, best first."""
        own, number = counts.of(party), counts.num_searched(party, is_halved=self.is_halved)
        first = counts.cloud if self.is_halved and party is Party.DEVICE else 0
        return self._first(party, number)[first : first + own]

    def of_one_prompt(
        self, parties: Sequence[Party], counts: Counts, pick: str, query: str
    ) -> tuple[int, ...]:
        """The documents that one row holds. pick: as `Method.pick` has it; "" for all those of the parties."""
        if pick == "right":
            return self.right
        if pick == "each":
            return tuple(place for party in parties for place in self.ranked[party][:1])
        if pick == "best":
            found = {place for party in parties for place in self._first(party, self.num_passages)}
            scores = self.scores(query)
            return tuple(sorted(found, key=lambda place: (-scores[place], place))[: self.num_passages])
        return tuple(place for party in parties for place in self.documents(party, counts))

    def scores(self, text: str) -> list[float]:
        """Score of every document for a text, computed once."""
        if text not in self._scores:
            self._scores[text] = self.estimate(text)
        return self._scores[text]

    def _first(self, party: Party, number: int) -> tuple[int, ...]:
        """The best of a search for so many."""
        return self.ranked_again.get((party, number), self.ranked[party])[:number]

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
    num_passages: int = 0,
    sources: Sequence[str] = (),
) -> DocumentSet:
    """Documents of both sides for `query`. counts: all numbers that will be asked for.

    is_halved: both sides share the device's retriever. clip: cuts a document to its longest permitted length.
    num_passages: how many of both sides together will be asked for. sources: documents that hold the answer, as
    "device/name.md", of sides with indexes of their own. EvaluationError for one that is not in that index.
    """
    texts: list[str] = []
    ids: dict[Party, dict[str, int]] = {}  # the places of what was found
    ranked: dict[Party, tuple[int, ...]] = {}
    ranked_again: dict[tuple[Party, int], tuple[int, ...]] = {}
    right: list[int] = []
    for party in (Party.DEVICE,) if is_halved else PARTIES:
        retriever, places = retrievers[party], ids.setdefault(party, {})

        def place(hits: Sequence[Hit], places: dict[str, int] = places) -> tuple[int, ...]:
            for hit in hits:
                if hit.id not in places:
                    places[hit.id] = len(texts)
                    texts.append(clip(hit.document.page_content))
            return tuple(places[hit.id] for hit in hits)

        numbers = sorted({each.num_searched(party, is_halved=is_halved) for each in counts} | {num_passages})
        for number in numbers if retriever.ranks_again else numbers[-1:]:
            ranked[party] = ranked_again[party, number] = place(_hits(retriever, query, number))
        right += place(_held(retriever, party, query, sources))
    if is_halved:
        ranked[Party.CLOUD] = ranked[Party.DEVICE]
        ranked_again |= {(Party.CLOUD, number): each for (_, number), each in ranked_again.items()}

    def estimate(text: str) -> list[float]:
        scores: list[float] = []
        for party, places in ids.items():
            scores += retrievers[party].relevance(list(places), text)
        return scores

    return DocumentSet(tuple(texts), ranked, is_halved, estimate, ranked_again, num_passages, tuple(right))


def _hits(retriever: Retriever | StoreRetriever, query: str, count: int) -> list[Hit]:
    return retriever.search(query, count) if count else []


def _held(
    retriever: Retriever | StoreRetriever, party: Party, query: str, sources: Sequence[str]
) -> list[Hit]:
    """All of the documents named that this side has. Raises EvaluationError for one that it lacks."""
    held: list[Hit] = []
    for source in sources:
        owner, _, name = source.partition("/")
        if owner != party:
            continue
        hits = retriever.search(query, MAX_CHUNKS, filter={"source": name})
        if not hits:
            raise EvaluationError(
                f"The question {query!r} names the source {source}, which the {party}'s index does not hold; correct "
                "it, or use the documents that belong to the questions."
            )
        held += hits
    return held
