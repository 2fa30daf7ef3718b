"""Which documents an evaluation uses, where a scoring model ranks the nearest again, and those of plain RAG."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.topology import PARTIES, Party
from tandem_lab.quality.document_sets import Counts, search

WORTH = (1.0, 0.5, 3.0, 0.2, 4.0, 2.0)  # of documents 0, 1, ... in the order of their nearness


class Scripted:
    """Finds the k nearest and, with `ranks_again`, sorts them by their worth."""

    def __init__(self, ranks_again: bool) -> None:
        self.ranks_again = ranks_again
        self.asked: list[int] = []

    def search(self, query: str, k: int) -> list[Any]:
        self.asked.append(k)
        order = sorted(range(k), key=lambda each: -WORTH[each]) if self.ranks_again else range(k)
        return [
            SimpleNamespace(id=f"id {each}", document=SimpleNamespace(page_content=f"text {each}"))
            for each in order
        ]

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        return [WORTH[int(each.split()[1])] for each in ids]


def used(retriever: Any, counts: Sequence[Counts]) -> dict[Counts, list[list[int]]]:
    """Numbers of the documents of device and cloud, by counts."""
    found = search(dict.fromkeys(PARTIES, retriever), "question", counts)
    for text, score in zip(found.texts, found.scores(), strict=True):
        assert score == WORTH[int(text.split()[1])]
    return {
        each: [
            [int(found.texts[place].split()[1]) for place in found.documents(party, each)]
            for party in (Party.DEVICE, Party.CLOUD)
        ]
        for each in counts
    }


@pytest.mark.parametrize("order", [1, -1])
def test_fewer_documents_are_those_that_a_query_for_fewer_gives(order: int) -> None:
    counts = [Counts(0, 1), Counts(2, 2), Counts(3, 5)][::order]
    given = used(Scripted(ranks_again=True), counts)
    assert given == {
        Counts(0, 1): [[], [0]],
        Counts(2, 2): [[0, 1], [0, 1]],
        Counts(3, 5): [[2, 0, 1], [4, 2, 0, 1, 3]],
    }


@pytest.mark.parametrize("ranks_again", [False, True])
def test_one_prompt_has_the_best_of_both_whatever_the_counts(ranks_again: bool) -> None:
    retrievers: Any = dict.fromkeys(PARTIES, Scripted(ranks_again))
    counts = [Counts(1, 0)]
    found = search(retrievers, "question", counts, num_passages=3)

    def texts(pick: str) -> list[str]:
        return [found.texts[place] for place in found.of_one_prompt(PARTIES, counts[0], pick)]

    assert texts("best") == ["text 2", "text 2", "text 0"], "of three of each party"
    assert texts("each") == (["text 2"] * 2 if ranks_again else ["text 0"] * 2)
    assert texts("") == ["text 0"]
