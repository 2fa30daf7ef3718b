"""Search and relevance."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from tandem.config.parties import SearchBy
from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document, split
from tandem.retrieval.index import cosines
from tandem.retrieval.loaders import load_path
from tandem.retrieval.retriever import Retriever
from tests.unit.retrieval.helpers import CHUNK_CHARS, OVERLAP, make_index

WORDS = "ant bee cat dog eel fox gnu hen ibis jay kiwi lark mole newt owl pig quail ram seal toad"


def pages(count: int) -> list[Document]:
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS.split(), 6)) for _ in range(count)]
    documents = [Document(page_content=text, metadata={"source": f"{n}"}) for n, text in enumerate(texts)]
    return split(documents, CHUNK_CHARS, OVERLAP)


@pytest.fixture
def retriever(tmp_path: Path, corpus: Path, embedder) -> Retriever:
    make_index(tmp_path / "index", split(load_path(corpus).documents, CHUNK_CHARS, OVERLAP), embedder)
    return Retriever.open(tmp_path / "index", embedder)


def test_the_best_page_comes_first_with_its_cosine(retriever: Retriever, embedder) -> None:
    query = "the best rated puzzle game"
    hits = retriever.search(query, 2)
    assert [hit.document.metadata["source"] for hit in hits] == ["puzzle.md", "chess.txt"]
    assert hits[0].id == hits[0].document.id
    text = embedder.embed([hits[0].document.page_content])[0].astype(float)
    assert hits[0].score == pytest.approx(text @ embedder.embed([query])[0], abs=1e-7)


def test_k_beyond_the_corpus_gives_every_page(retriever: Retriever) -> None:
    assert len(retriever.search("game", 10)) == 3


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat"])
def test_relevance_to_the_query_is_the_search_score_bit_for_bit(
    tmp_path: Path, embedder, factory: str
) -> None:
    index = make_index(tmp_path / "i", pages(300), embedder, factory)
    for search_by in get_args(SearchBy):
        retriever = Retriever(index, embedder, search_by=search_by)
        hits = retriever.search("owl and fox", 8)
        assert len(hits) == 8
        assert retriever.relevance([hit.id for hit in hits], "owl and fox") == [hit.score for hit in hits]
        scores = sorted((hit.score for hit in hits), reverse=True)
        assert (scores == [hit.score for hit in hits]) == (search_by == "dense")


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat"])
def test_relevance_does_not_depend_on_the_other_ids(tmp_path: Path, embedder, factory: str) -> None:
    documents = pages(300)
    retriever = Retriever(make_index(tmp_path / "i", documents, embedder, factory), embedder)
    ids = [str(document.id) for document in documents]
    together = retriever.relevance(ids, "owl and fox")
    alone = [retriever.relevance([name], "owl and fox")[0] for name in ids]
    assert together == alone
    assert retriever.relevance(ids[::-1], "owl and fox") == together[::-1]


def test_relevance_follows_the_growing_answer(retriever: Retriever) -> None:
    ids = {hit.document.metadata["source"]: hit.id for hit in retriever.search("game", 3)}
    wanted = [ids["puzzle.md"], ids["chess.txt"]]
    before = retriever.relevance(wanted, "Which board game for two players?")
    after = retriever.relevance(wanted, "Which board game for two players? The best rated puzzle")
    assert before[0] < before[1]
    assert after[0] - after[1] > before[0] - before[1]


def test_one_text_at_a_time_is_embedded(retriever: Retriever, embedder) -> None:
    embedder.calls.clear()
    hits = retriever.search("game", 3)
    retriever.relevance([hit.id for hit in hits], "game on")
    retriever.relevance([], "nothing to do")
    assert embedder.calls == [["game"], ["game on"]]


def test_unknown_id_and_empty_query(retriever: Retriever) -> None:
    with pytest.raises(RetrievalError, match=r"^The index holds no document with the id 'x'; "):
        retriever.relevance(["x"], "text")
    with pytest.raises(RetrievalError) as caught:
        retriever.search(" \n", 3)
    assert str(caught.value) == "The query is empty (got ' \\n'); ask something."


def test_an_embedder_that_does_not_fit(retriever: Retriever, tmp_path: Path, small_embedder) -> None:
    with pytest.raises(RetrievalError) as caught:
        Retriever(retriever.index, small_embedder)
    assert str(caught.value) == (
        "The index holds vectors of dimension 32, but the embedder words gives 8; "
        "use words, or build the index again with `tandem index`."
    )
    with pytest.raises(RetrievalError, match="must be searched with the embedder that built it"):
        Retriever.open(tmp_path / "index", small_embedder)


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
