"""Chunks and metadata in the database: what was written comes back, and filters agree with the obvious oracle."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Retriever
from tandem.retrieval.store import Filter, canonical, values_of
from tests.unit.retrieval.helpers import make_index, refused

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"]
KINDS = ["Flat", "IVF8,Flat"]


def chunk(identity: str | None, text: str = "t", **metadata: object) -> Document:
    return Document(id=identity, page_content=text, metadata=metadata)


def documents(count: int) -> list[Document]:
    rng = np.random.default_rng(3)
    return [
        chunk(f"{n}", " ".join(rng.choice(WORDS, 6)), source=f"{n % 3}.txt", page=n % 50)
        for n in range(count)
    ]


def test_round_trip(tmp_path: Path, embedder) -> None:
    chunks = [
        chunk("b", "grün\nblau\u2028\0", n=1, deep={"x": [1, None]}, half=0.1 + 0.2, big=2**70, none=None),
        chunk("a", "", **{'a "quoted" key.$[0]': 1.0}),
        chunk("cc", "last"),
    ]
    index = make_index(tmp_path / "i", chunks, embedder)
    assert len(index) == 3
    assert list(index.chunks()) == index.documents(np.arange(3)) == chunks
    assert index.rows(["cc", "a", "b", "a"]).tolist() == [2, 1, 0, 1]
    assert index.rows([]).tolist() == []


@pytest.mark.parametrize("name", ["", "aa", "zzz", "ü", "a" * 50, "\ud800"])
def test_an_unknown_id(tmp_path: Path, embedder, name: str) -> None:
    index = make_index(tmp_path / "i", [chunk("a"), chunk("b")], embedder)
    with refused(
        f"The index holds no document with the id {name!r}; it may have been rebuilt: search again."
    ):
        index.rows(["a", name])


@pytest.mark.parametrize("score_all", [0, 10_000])
@pytest.mark.parametrize("factory", KINDS)
def test_every_hit_fits_and_there_are_k(
    tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch, factory: str, score_all: int
) -> None:
    monkeypatch.setattr("tandem.retrieval.index.SCORE_ALL", max(score_all, 7))
    index = make_index(tmp_path / "i", documents(600), embedder, factory)
    retriever = Retriever(index, embedder, search_by="dense")
    hits = retriever.search("owl and fox", 9, filter={"source": "1.txt", "page": [4, 7, 99]})
    places = [(hit.document.metadata["source"], hit.document.metadata["page"]) for hit in hits]
    assert (len(places), set(places)) == (8, {("1.txt", 4), ("1.txt", 7)})
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize(
    ("filter", "sentence"),
    [
        ({"author": "Ada"}, "'author' is none of chunk, source; use one of these."),
        ({"author": []}, "'author' is none of chunk, source; use one of these."),
        ({"source": "chess.txt", "author": "Ada"}, "'author' is none of chunk, source; use one of these."),
        ({"sorce": "a"}, "'sorce' is none of chunk, source; did you mean source?"),
    ],
)
def test_an_unknown_key(directory: Path, embedder, filter: dict[str, Any], sentence: str) -> None:
    with refused(f"A filter must name metadata that the documents have, but {sentence}"):
        Retriever.open(directory, embedder).search("game", 3, filter=filter)


VALUES: list[Any] = [
    *(1, 2, 1.0, True, "1", None, {"deep": [1]}, [2, 3], 2**70, 2**70 + 1, 0.1 + 0.2, 0.3, math.inf),
    *("", "ü\u2028", "\0", '"', {}, [], {"b": {"c": 2}}),
]


def oracle(metadata: list[dict[str, Any]], filter: Filter) -> list[int]:
    """The rows that fit, one by one."""

    def fits(body: dict[str, Any]) -> bool:
        wanted = {key: {canonical(value) for value in values_of(filter[key])} for key in filter}
        return all(key in body and wanted[key] & facts(body[key]) for key in filter)

    def facts(value: Any) -> set[str]:
        return {canonical(value), *(map(canonical, value) if isinstance(value, list) else [])}

    return [row for row, body in enumerate(metadata) if fits(body)]


def test_filters_agree_with_the_obvious_oracle(tmp_path: Path, embedder) -> None:
    """Odd values under odd keys: every pair of them as a filter."""
    keys = ["a", 'a "b"', "$.a", "a[0]", "\\", "ü"]
    rng = np.random.default_rng(0)
    metadata = [
        {key: VALUES[rng.integers(len(VALUES))] for key in keys if rng.random() < 0.7} for _ in range(300)
    ]
    chunks = [chunk(str(row), f"text {row}", **body) for row, body in enumerate(metadata)]
    index = make_index(tmp_path / "i", chunks, embedder)
    query = embedder.embed(["text"])[0]
    num_found = 0
    for one, other in itertools.product(VALUES, repeat=2):
        key, second = rng.choice(keys, 2, replace=False)
        for filter in ({key: [one, other]}, {key: [one], second: [other, one]}):
            rows, _ = index.search(query, len(index), filter)
            assert sorted(rows.tolist()) == oracle(metadata, filter), filter
            num_found += len(rows)
    assert num_found > 1000
