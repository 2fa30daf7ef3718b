"""Two rankings fused, filtered and ranked again: by vectors and by words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.config.parties import SearchBy
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import POOL, RANK_CONSTANT, Retriever, fuse
from tests.unit.retrieval.conftest import WordEmbedder
from tests.unit.retrieval.helpers import make_index

ANIMALS = (
    "ant bee cat dog eel fox gnu hen ibis jay kiwi lark mole newt owl pig quail ram seal toad".split()  # noqa: SIM905
)


class CodeBlindEmbedder(WordEmbedder):
    """Sees no digits, as embedders hardly do."""

    def embed(self, texts: Sequence[str], *, is_query: bool = False):
        return super().embed([re.sub(r"\d", "", text) for text in texts], is_query=is_query)


def notes(count: int = 60) -> list[Document]:
    """Of random words, half of them with a number."""
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(ANIMALS, 5)) + f" {10000 + n}" * (n % 2) for n in range(count)]
    return [
        Document(id=str(n), page_content=text, metadata={"page": n % 3, "source": f"{n % 7}"})
        for n, text in enumerate(texts)
    ]


@pytest.fixture
def retriever(tmp_path: Path) -> Retriever:
    embedder = CodeBlindEmbedder()
    return Retriever(make_index(tmp_path / "i", notes(), embedder), embedder)


def by(retriever: Retriever, search_by: SearchBy, scorer=None) -> Retriever:
    return Retriever(retriever.index, retriever.embedder, scorer, search_by)


def ids(retriever: Retriever, query: str, k: int, **named) -> list[str]:
    return [hit.id for hit in retriever.search(query, k, **named)]


@given(st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8), min_size=1, max_size=3))
def test_fused_scores_are_sums_of_reciprocal_ranks(rankings: list[list[int]]) -> None:
    rows, fused = fuse([np.array(ranking, np.int64) for ranking in rankings])
    expected = {
        row: sum(Fraction(1, RANK_CONSTANT + 1 + each.index(row)) for each in rankings if row in each)
        for each in rankings
        for row in each
    }
    assert rows.tolist() == sorted(expected)
    assert fused.tolist() == pytest.approx([float(expected[row]) for row in rows.tolist()], rel=1e-12)


@pytest.mark.parametrize("filter", [None, {"page": [0, 2]}, {"page": 1, "source": ["1", "4"]}])
def test_hits_are_those_of_the_obvious_search(retriever: Retriever, filter) -> None:
    """Every row scored by hand, all rankings cut to POOL k after the filter, fused, equals by cosine, then by row."""
    documents = notes()
    fits = [
        row
        for row, document in enumerate(documents)
        if all(
            document.metadata[key] in (wanted if isinstance(wanted, list) else [wanted])
            for key, wanted in (filter or {}).items()
        )
    ]
    for query in ("owl and fox 10017", "10005", "cat dog ibis", "nothing of it", "ant 10009 10013 seal"):
        for k in (1, 3, 8):
            cosines = retriever.relevance([str(row) for row in fits], query)
            cosine = dict(zip(fits, cosines, strict=True))
            dense = sorted(fits, key=lambda row: (-cosine[row], row))[: POOL * k]
            words, codes = (
                [row for row in everything.tolist() if row in fits][: POOL * k]
                for everything in (
                    retriever.index.search_words(query, len(documents)),
                    retriever.index.search_words(" ".join(re.findall(r"\d{5}", query)), len(documents)),
                )
            )
            score = {
                row: sum(
                    1 / (RANK_CONSTANT + 1 + each.index(row)) for each in (dense, words, codes) if row in each
                )
                for row in {*dense, *words, *codes}
            }
            best = sorted(score, key=lambda row: (-score[row], -cosine[row], row))[:k]
            hits = retriever.search(query, k, filter=filter)
            assert [hit.id for hit in hits] == [str(row) for row in best]
            assert [hit.score for hit in hits] == [cosine[row] for row in best]
            assert [hit.id for hit in by(retriever, "words").search(query, k, filter=filter)] == [
                str(row) for row in words[:k]
            ]
            assert ids(by(retriever, "dense"), query, k, filter=filter) == [str(row) for row in dense[:k]]


def test_hybrid_finds_the_codes_that_vectors_miss(retriever: Retriever) -> None:
    """The control is the same retriever without words: it does not pass."""
    wanted = range(1, 60, 2)

    def recall(search_by: SearchBy) -> float:
        searched = by(retriever, search_by)
        found = [ids(searched, f"where is number {10000 + n}", 2) for n in wanted]
        return float(np.mean([str(n) in each for n, each in zip(wanted, found, strict=True)]))

    assert recall("words") == recall("hybrid") == 1
    assert recall("dense") < 0.2


class Counting:
    """Prefers documents with a late number, and notes what it was asked."""

    name = fingerprint = "counting"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        self.asked.append(list(documents))
        return [float("".join(re.findall(r"\d", document)) or 0) for document in documents]


@pytest.mark.parametrize("search_by", get_args(SearchBy))
def test_a_scoring_model_chooses_from_the_pool(retriever: Retriever, search_by: SearchBy) -> None:
    scorer = Counting()
    ranked = by(retriever, search_by, scorer)
    hits = ranked.search("owl fox cat", 3)
    pool = [hit.document.page_content for hit in by(retriever, search_by).search("owl fox cat", POOL * 3)]
    if search_by != "hybrid":  # whose rankings would be POOL times as long for so many
        assert scorer.asked == [pool]
    assert len(scorer.asked[0]) == POOL * 3
    assert [hit.score for hit in hits] == sorted(Counting().scores("", scorer.asked[0]), reverse=True)[:3]
    assert ranked.relevance([hit.id for hit in hits], "owl fox cat") == [hit.score for hit in hits]
