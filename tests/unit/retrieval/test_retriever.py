"""Search and relevance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.config.parties import SearchBy
from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.index import cosines
from tandem.retrieval.retriever import POOL, RANK_CONSTANT, Hit, Retriever, fuse
from tests.unit.retrieval.conftest import WordEmbedder
from tests.unit.retrieval.helpers import make_index, refused

ANIMALS = (
    "ant bee cat dog eel fox gnu hen ibis jay kiwi lark mole newt owl pig quail ram seal toad".split()  # noqa: SIM905
)


def notes(count: int) -> list[Document]:
    """Of random words, half of them with a number."""
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(ANIMALS, 5)) + f" {10000 + n}" * (n % 2) for n in range(count)]
    return [
        Document(id=str(n), page_content=text, metadata={"page": n % 3, "source": f"{n % 7}"})
        for n, text in enumerate(texts)
    ]


@pytest.fixture
def retriever(directory: Path, embedder) -> Retriever:
    return Retriever.open(directory, embedder)


def test_the_best_page_comes_first_with_its_cosine(retriever: Retriever, embedder) -> None:
    query = "the best rated puzzle game"
    hits = retriever.search(query, 2)
    assert [hit.document.metadata["source"] for hit in hits] == ["puzzle.md", "chess.txt"]
    assert hits[0].id == hits[0].document.id
    text = embedder.embed([hits[0].document.page_content])[0].astype(float)
    assert hits[0].score == pytest.approx(text @ embedder.embed([query])[0], abs=1e-7)


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat"])
def test_relevance_is_the_search_score_bit_for_bit_and_depends_on_no_other_id(
    tmp_path: Path, embedder, factory: str
) -> None:
    documents = notes(300)
    index = make_index(tmp_path / "i", documents, embedder, factory)
    for search_by in get_args(SearchBy):
        retriever = Retriever(index, embedder, search_by=search_by)
        hits = retriever.search("owl and fox", 8)
        assert len(hits) == 8
        assert retriever.relevance([hit.id for hit in hits], "owl and fox") == [hit.score for hit in hits]
        scores = sorted((hit.score for hit in hits), reverse=True)
        assert (scores == [hit.score for hit in hits]) == (search_by == "dense")
    ids = [str(document.id) for document in documents]
    together = retriever.relevance(ids, "owl and fox")
    assert together == [retriever.relevance([name], "owl and fox")[0] for name in ids]
    assert retriever.relevance(ids[::-1], "owl and fox") == together[::-1]


def test_one_text_at_a_time_is_embedded(retriever: Retriever, embedder) -> None:
    embedder.calls.clear()
    hits = retriever.search("game", 3)
    retriever.relevance([hit.id for hit in hits], "game on")
    retriever.relevance([], "nothing to do")
    assert embedder.calls == [["game"], ["game on"]]


def test_neighbours_of_one_paragraph_are_one_hit_in_the_place_of_the_better(retriever: Retriever) -> None:
    def hit(name: str, text: str, chunk: int, **metadata: Any) -> Hit:
        metadata |= {"chunk": chunk}
        return Hit(name, Document(page_content=text, metadata=metadata), float(ord(name)))

    texts = ["a b c", "b c d e", "d e f g", "f g h"]
    p, q, r, s = (hit("pqrs"[at], text, at, source="a") for at, text in enumerate(texts))
    x, y = hit("x", "b c x", 1, source="b"), hit("y", "b c y", 1, source="a", page=2)
    joined = retriever.join([x, q, p, y, hit("z", "f g z", 4, source="a")])
    assert [one.id for one in joined] == ["x", "q+p", "y", "z"]
    assert (joined[1].score, joined[1].document.id) == (q.score, "q+p")
    assert joined[1].document.page_content == "a b c d e"
    texts = [one.document.page_content for one in retriever.join([s, q, p, r])]
    assert texts == ["d e f g h", "a b c d e"], "no passage is of three"
    assert retriever.join([p, r, y]) == [p, r, y]


def test_unknown_id_and_empty_query(retriever: Retriever) -> None:
    with pytest.raises(RetrievalError, match=r"^The index holds no document with the id 'x'; "):
        retriever.relevance(["x"], "text")
    with refused("The query is empty (got ' \\n'); ask something."):
        retriever.search(" \n", 3)


def test_an_embedder_that_does_not_fit(retriever: Retriever, directory: Path) -> None:
    small_embedder = WordEmbedder(dimension=8)
    with refused(
        "The index holds vectors of dimension 32, but the embedder words gives 8; "
        "use words, or build the index again with `tandem index`."
    ):
        Retriever(retriever.index, small_embedder)
    with pytest.raises(RetrievalError, match="must be searched with the embedder that built it"):
        Retriever.open(directory, small_embedder)


def test_a_cosine_does_not_depend_on_the_other_rows() -> None:
    """To the last bit, however many rows there are and however they lie in memory."""
    rng = np.random.default_rng(1)
    for dimension in (7, 384):
        vectors = rng.normal(size=(40, dimension)).astype(np.float32)
        vector = rng.normal(size=dimension).astype(np.float32)
        together = cosines(vectors, vector)
        assert [cosines(vectors[n : n + 1], vector)[0] for n in range(40)] == together.tolist()
        assert cosines(vectors[::3], vector).tolist() == together[::3].tolist()
        assert cosines(np.asfortranarray(vectors), vector).tolist() == together.tolist()


def test_cosines_divide_by_the_lengths_and_bear_zero() -> None:
    vectors = np.array([[2, 0], [0, 0], [1, 1]], np.float32)
    np.testing.assert_allclose(cosines(vectors, np.array([3, 0], np.float32)), [1, 0, 0.5**0.5])


# ---- Two rankings fused, filtered and ranked again: by vectors and by words -------------------------------------


class CodeBlindEmbedder(WordEmbedder):
    """Sees no digits, as embedders hardly do."""

    def embed(self, texts: Sequence[str], *, is_query: bool = False):
        return super().embed([re.sub(r"\d", "", text) for text in texts], is_query=is_query)


@pytest.fixture
def hybrid(tmp_path: Path) -> Retriever:
    embedder = CodeBlindEmbedder()
    return Retriever(make_index(tmp_path / "i", notes(60), embedder), embedder)


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


def test_a_first_place_counts_more_than_two_fifth_ones() -> None:
    rows, fused = fuse([np.array(ranking) for ranking in ([1, 3, 4, 5, 2], [6, 7, 8, 9, 2])])
    assert set(rows[np.argsort(-fused, kind="stable")[:2]].tolist()) == {1, 6}


@pytest.mark.parametrize("filter", [None, {"page": [0, 2]}, {"page": 1, "source": ["1", "4"]}])
def test_hits_are_those_of_the_obvious_search(hybrid: Retriever, filter) -> None:
    """Every row scored by hand, all rankings cut to POOL k after the filter, fused, equals by cosine, then by row."""
    documents = notes(60)
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
            cosines = hybrid.relevance([str(row) for row in fits], query)
            cosine = dict(zip(fits, cosines, strict=True))
            dense = sorted(fits, key=lambda row: (-cosine[row], row))[: POOL * k]
            words, codes = (
                [row for row in everything.tolist() if row in fits][: POOL * k]
                for everything in (
                    hybrid.index.search_words(query, len(documents)),
                    hybrid.index.search_words(" ".join(re.findall(r"\d{5}", query)), len(documents)),
                )
            )
            score = {
                row: sum(
                    1 / (RANK_CONSTANT + 1 + each.index(row)) for each in (dense, words, codes) if row in each
                )
                for row in {*dense, *words, *codes}
            }
            best = sorted(score, key=lambda row: (-score[row], -cosine[row], row))[:k]
            hits = hybrid.search(query, k, filter=filter)
            assert [hit.id for hit in hits] == [str(row) for row in best]
            assert [hit.score for hit in hits] == [cosine[row] for row in best]
            assert [hit.id for hit in by(hybrid, "words").search(query, k, filter=filter)] == [
                str(row) for row in words[:k]
            ]
            assert ids(by(hybrid, "dense"), query, k, filter=filter) == [str(row) for row in dense[:k]]


class Counting:
    """Prefers documents with a late number, and notes what it was asked."""

    name = fingerprint = "counting"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        self.asked.append(list(documents))
        return [float("".join(re.findall(r"\d", document)) or 0) for document in documents]


@pytest.mark.parametrize("search_by", get_args(SearchBy))
def test_a_scoring_model_chooses_from_the_pool(hybrid: Retriever, search_by: SearchBy) -> None:
    scorer = Counting()
    ranked = by(hybrid, search_by, scorer)
    hits = ranked.search("owl fox cat", 3)
    pool = [hit.document.page_content for hit in by(hybrid, search_by).search("owl fox cat", POOL * 3)]
    if search_by != "hybrid":  # whose rankings would be POOL times as long for so many
        assert scorer.asked == [pool]
    assert len(scorer.asked[0]) == POOL * 3
    assert [hit.score for hit in hits] == sorted(Counting().scores("", scorer.asked[0]), reverse=True)[:3]
    assert ranked.relevance([hit.id for hit in hits], "owl fox cat") == [hit.score for hit in hits]


# ---- names of files, and copies ------------------------------------------------------------------------------------


def test_a_file_that_a_question_names_is_found(tmp_path: Path) -> None:
    names = [
        "people/Mira Lund.md",
        "people/Per Dahl.md",
        "invoice-2024-119.txt",
        "invoice-2024-120.txt",
        "2024-05-01.md",
        "Mietvertrag Bäckerstraße.pdf",
        "東京.md",
        "x.md",
    ]
    texts = [
        Document(page_content=f"order of rope, paid {n}", metadata={"source": name}, id=str(n))
        for n, name in enumerate(names)
    ]
    found = Retriever(make_index(tmp_path / "i", texts, CodeBlindEmbedder()), CodeBlindEmbedder())
    for question, right in (
        ("What is the phone number of Mira Lund?", names[0]),
        ("Per Dahl's number", names[1]),
        ("Summarise the file invoice-2024-119.txt", names[2]),
        ("what does Invoice 2024 120 say", names[3]),
        ("What was on 2024-05-01?", names[4]),
        ("Was steht im Mietvertrag Baeckerstrasse / Bäckerstrasse?", names[5]),
        ("東京はどこ", names[6]),
    ):
        assert found.search(question, 2)[0].document.metadata["source"] == right
        only = {"source": ["x.md", "people/Per Dahl.md"]}
        assert {hit.document.metadata["source"] for hit in found.search(question, 8, filter=only)} == {
            *only["source"]
        }
    rows, _ = found.index.search_names("Was Lund in Bäckerstraße on a day of 2024?")
    assert rows.tolist() == [], "a name is given by all its words"


@pytest.mark.parametrize("search_by", get_args(SearchBy))
def test_of_many_copies_of_a_text_one_is_found(tmp_path: Path, search_by: SearchBy) -> None:
    ferry = [f"The ferry to Vey leaves at six.{' ' * n}" for n in range(50)]
    texts = [*ferry, "The ferry to Vey costs 61 crowns.", *(f"Bean row {n} of Vey." for n in range(5))]
    documents = [
        Document(page_content=text, metadata={"source": f"{n}.md"}, id=str(n)) for n, text in enumerate(texts)
    ]
    found = Retriever(make_index(tmp_path / "i", documents, WordEmbedder()), WordEmbedder(), None, search_by)
    for k in (2, 4, 6):
        hits = found.search("When leaves the ferry to Vey, and what does it cost?", k)
        assert len({" ".join(hit.document.page_content.split()) for hit in hits}) == k
        assert "61 crowns" in "".join(hit.document.page_content for hit in hits[:2])
    assert len(found.search("ferry Vey", 50)) == 7, "there are no more"
