"""Metadata filters: against the obvious oracle, on every kind of index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.filters import Filter, Metadata
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"]
KINDS = ["Flat", "IVF8,Flat", "HNSW16", "PQ8", "IVF8,PQ8", "SQ8", "PQ8x4fs", "PCA16,Flat", "IVF8,PQ8,RFlat"]


class Rows(list[dict[str, Any]]):
    def metadata(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        return [self[row] for row in rows]


def documents(count: int) -> list[Document]:
    rng = np.random.default_rng(3)
    return [
        Document(
            id=f"{n}",
            page_content=" ".join(rng.choice(WORDS, 6)),
            metadata={"source": f"{n % 3}.txt", "page": n % 50},
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("score_all", [0, 10_000])
@pytest.mark.parametrize("factory", KINDS)
def test_every_hit_fits_and_there_are_k(
    tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch, factory: str, score_all: int
) -> None:
    monkeypatch.setattr("tandem.retrieval.index.SCORE_ALL", max(score_all, 7))
    index = Index.build(tmp_path / "i", documents(600), embedder, factory)
    hits = Retriever(index, embedder).search("owl and fox", 9, filter={"source": "1.txt", "page": [4, 7, 99]})
    assert len(hits) == 8
    assert {(hit.document.metadata["source"], hit.document.metadata["page"]) for hit in hits} == {
        ("1.txt", 4),
        ("1.txt", 7),
    }
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("factory", KINDS)
def test_few_that_fit_are_all_weighed(tmp_path: Path, embedder, factory: str) -> None:
    index = Index.build(tmp_path / "i", documents(600), embedder, factory)
    retriever = Retriever(index, embedder)
    fits = [name for name, document in enumerate(documents(600)) if document.metadata["page"] < 5]
    hits = retriever.search("cat and dog", 6, filter={"page": list(range(5))})
    scores = dict(zip(fits, retriever.relevance([str(name) for name in fits], "cat and dog"), strict=True))
    assert [hit.score for hit in hits] == sorted(scores.values(), reverse=True)[:6]


def test_nothing_fits(directory: Path, embedder) -> None:
    retriever = Retriever.open(directory, embedder)
    assert retriever.search("game", 3, filter={"source": "other.txt"}) == []
    assert retriever.search("game", 3, filter={"source": []}) == []
    assert len(retriever.search("game", 3, filter={})) == 3


def test_an_unknown_key(directory: Path, embedder) -> None:
    with pytest.raises(RetrievalError) as caught:
        Retriever.open(directory, embedder).search("game", 3, filter={"author": "Ada"})
    assert str(caught.value) == (
        "A filter must name metadata that the documents have, but 'author' is none of chunk, source; "
        "use one of these."
    )


@pytest.mark.parametrize(
    ("filter", "rows"),
    [
        ({"a": 1}, [0, 2]),
        ({"a": 1.0}, [0, 2]),
        ({"a": True}, [3]),
        ({"a": "1"}, [4]),
        ({"a": None}, [5]),
        ({"a": [True, "1", 7]}, [3, 4]),
        ({"a": {1, None}}, [0, 2, 5]),
        ({"a": 1, "b": "x"}, [0]),
        ({"a": {"deep": [1]}}, [6]),
        ({"a": [[2, 3]]}, [7]),
    ],
)
def test_what_equals_what(filter: Filter, rows: list[int]) -> None:
    values: list[Any] = [1, 2, 1.0, True, "1", None, {"deep": [1]}, [2, 3]]
    metadata = Rows({"a": value} for value in values)
    metadata[0]["b"] = "x"
    del metadata[1]["a"]
    assert Metadata(metadata).rows(filter).tolist() == rows


def test_no_row_fits_and_many_rows_do(tmp_path: Path, embedder) -> None:
    """More than are read at once; where nothing fits nothing is found."""
    index = Index.build(tmp_path / "i", documents(2500), embedder)
    assert Retriever(index, embedder).search("cat", 3, filter={"source": "moon.txt"}) == []
    assert Metadata(index._chunks).rows({"page": 7}).tolist() == list(range(7, 2500, 50))


def test_metadata_is_read_once_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows({"a": n, "b": 0} for n in range(5))
    metadata = Metadata(rows)
    metadata.rows({"a": 1})
    monkeypatch.setattr(rows, "metadata", lambda rows: pytest.fail("read again"), raising=False)
    assert metadata.rows({"a": [2, 3]}).tolist() == [2, 3]
