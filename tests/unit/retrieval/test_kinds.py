"""The kind of an index by its size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem.retrieval import index as kinds
from tandem.retrieval.build import build_index, update_index, write_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever
from tests.unit.retrieval.helpers import make_index


@pytest.mark.parametrize(
    ("count", "factory"),
    [
        (1, "Flat"),
        (49_999, "Flat"),
        (50_000, "IVF512,Flat"),
        (999_999, "IVF2048,Flat"),
        (1_000_000, "IVF2048,PQ48"),
        (21_000_000, "IVF8192,PQ48"),
    ],
)
def test_by_size(count: int, factory: str) -> None:
    assert kinds.resolve("auto", count, 384) == factory
    assert kinds.resolve("HNSW8", count, 384) == "HNSW8"
    assert kinds.resolve("auto", 10**6, 97) == "IVF2048,SQ8"


@pytest.mark.parametrize(
    ("dimension", "size"), [(384, 48), (768, 96), (1024, 128), (100, 10), (7, 1), (1, 1), (97, 1), (16, 2)]
)
def test_a_code_divides_the_dimension(dimension: int, size: int) -> None:
    assert kinds.code_bytes(dimension) == size


def test_the_kind_is_chosen_when_the_index_grows_and_is_written_in_its_manifest(
    tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "FLAT_BELOW", 300)
    monkeypatch.setattr(kinds, "IVF_BELOW", 600)
    documents = [Document(id=f"{n}", page_content=f"text {n}", metadata={}) for n in range(600)]
    found = []
    for count in (299, 300, 600):
        num_embedded = write_index(tmp_path / "i", documents[:count], embedder)
        found.append((Index.open(tmp_path / "i").manifest.factory, num_embedded))
    assert found == [("Flat", 299), ("IVF32,Flat", 1), ("IVF64,PQ4", 300)]


@pytest.mark.parametrize("way", ["update", "build"])
def test_a_deletion_goes_through_where_the_kind_cannot_be_trained_any_more(
    tmp_path: Path, embedder, way: str
) -> None:
    texts = [Document(page_content=f"text {n}", metadata={"source": str(n)}) for n in range(70)]
    directory, kind = tmp_path / "i", "IVF64,Flat"
    build_index(texts, directory, embedder, factory=kind)
    if way == "update":
        report = update_index(directory, embedder, delete=[str(n) for n in range(10)], factory=kind)
    else:
        report = build_index(texts[10:], directory, embedder, factory=kind)
    assert (report.num_deleted, report.num_embedded, report.manifest.factory) == (10, 0, "Flat")
    assert report.problems == [
        'The index kind "IVF64,Flat" cannot be trained with 60 chunks, so the index is "Flat" until there are more.'
    ]
    assert len(Index.open(directory)) == 60
    assert build_index(texts[10:], directory, embedder, factory=kind).is_unchanged
    assert build_index(texts, directory, embedder, factory=kind).manifest.factory == kind


def test_codes_find_and_vectors_decide(tmp_path: Path) -> None:
    """Recall of a coarse code alone is poor; with the vectors on disk it is that of the lists looked at."""

    class Numbered:
        name, fingerprint, dimension = "numbered", "n" * 32, 32

        def embed(self, texts, *, keep_end: bool = False):
            return vectors[[int(text) for text in texts]]

    rng = np.random.default_rng(2)
    centres = rng.normal(size=(30, 32))
    vectors = centres[rng.integers(30, size=2100)] + 0.5 * rng.normal(size=(2100, 32))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    documents = [Document(id=f"{n}", page_content=f"{n}", metadata={}) for n in range(2000)]
    retriever = Retriever(make_index(tmp_path / "i", documents, Numbered(), "IVF64,PQ4"), Numbered())
    truth = [set(np.argsort(-(vectors[:2000] @ query))[:10].tolist()) for query in vectors[2000:]]
    refined = [{int(hit.id) for hit in retriever.search(f"{n}", 10)} for n in range(2000, 2100)]
    alone = [set(retriever.index.vector_index.search(query, 10)[0].tolist()) for query in vectors[2000:]]
    recall = [
        np.mean([len(a & b) / 10 for a, b in zip(each, truth, strict=True)]) for each in (alone, refined)
    ]
    assert recall[0] < 0.7
    assert recall[1] >= 0.95
    assert np.array_equal(retriever.index.vectors(np.arange(2000)), vectors[:2000])
