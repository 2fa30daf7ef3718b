"""FAISS kinds: chosen by size, trained, searched, and what they give back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import index as kinds
from tandem.retrieval.build import build_index, update_index, write_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index, VectorIndex
from tandem.retrieval.retriever import Retriever
from tests.unit.retrieval.helpers import make_index

EXACT = ["Flat", "IVF8,Flat", "HNSW16", "HNSW16,Flat"]
QUANTISED = [
    "PQ8",
    "IVF8,PQ8",
    "SQ8",
    "OPQ8,IVF8,PQ8",
    "PCA16,Flat",
    "PQ8x4fs",
    "PQ8,RFlat",
    "IVF8_HNSW8,Flat",
]


def unit_vectors(count: int, dimension: int = 32) -> NDArray[np.float32]:
    vectors = np.random.default_rng(5).normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = unit_vectors(300)


@pytest.mark.parametrize("factory", EXACT + QUANTISED)
def test_every_kind_finds_a_vector_and_survives_the_disk(tmp_path: Path, factory: str) -> None:
    VectorIndex.build(VECTORS, factory).write(tmp_path / "v")
    index = VectorIndex.read(tmp_path / "v")
    rows, scores = index.search(VECTORS[7], 5)
    assert rows[0] == 7
    assert (len(index), index.dimension, len(scores)) == (300, 32, 5)
    given = index.vectors(np.array([7, 3, 7]))
    assert given.shape == (3, 32)
    assert given.dtype == np.float32
    assert np.array_equal(given[0], given[2])
    assert given[0] @ VECTORS[7] > 0.4


@pytest.mark.parametrize("factory", EXACT)
def test_exact_kinds_give_back_the_very_vectors_and_inner_products(factory: str) -> None:
    index = VectorIndex.build(VECTORS, factory)
    assert np.array_equal(index.vectors(np.arange(300)), VECTORS)
    rows, scores = index.search(VECTORS[7], 4)
    np.testing.assert_allclose(scores, VECTORS[rows] @ VECTORS[7], atol=1e-6)
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("factory", ["Flat", "HNSW16"])
def test_search_agrees_with_the_obvious_oracle(factory: str) -> None:
    index = VectorIndex.build(VECTORS, factory)
    for query in unit_vectors(320)[300:]:
        best = np.argsort(-(VECTORS @ query), kind="stable")[:3]
        assert index.search(query, 3)[0].tolist() == best.tolist()


@pytest.mark.parametrize(
    ("factory", "needed"),
    [("IVF400,Flat", 400), ("PQ8x9", 512), ("IVF8,PQ8x9", 512), ("IVF400,PQ8", 400), ("OPQ8,PQ8x10", 1024)],
)
def test_too_few_vectors_to_train(factory: str, needed: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RetrievalError) as caught:
        VectorIndex.build(VECTORS, factory)
    assert str(caught.value) == (
        f'The index kind "{factory}" needs at least {needed} chunks to train, but there are 300; '
        'use "Flat", a smaller kind, or more documents.'
    )
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("nonsense", "could not parse index string nonsense"),
        ("", "could not parse index string"),
        ("PQ7", "(d % M == 0)"),
        ("LSH", "metric == METRIC_L2"),
        ("IDMap,Flat", "add does not make sense"),
    ],
)
def test_a_factory_string_that_faiss_refuses(factory: str, reason: str) -> None:
    with pytest.raises(RetrievalError) as caught:
        VectorIndex.build(VECTORS, factory)
    sentence = str(caught.value)
    assert sentence.startswith(f'FAISS does not take the index kind "{factory}" for these vectors (')
    assert reason in sentence
    assert sentence.endswith('; use one like "Flat", "IVF64,Flat", "HNSW32" or "IVF64,PQ48".')
    assert "\n" not in sentence


@pytest.mark.parametrize("count", [3, 300])
def test_a_full_disk_is_noticed_to_the_last_byte(count: int) -> None:
    with pytest.raises(OSError, match="No space left"):
        VectorIndex.build(VECTORS[:count], "Flat").write(Path("/dev/full"))


@pytest.mark.parametrize("factory", EXACT + QUANTISED)
def test_exact_means_that_the_very_vectors_come_back(factory: str) -> None:
    index = VectorIndex.build(VECTORS, factory)
    assert index.is_exact == np.array_equal(index.vectors(np.arange(300)), VECTORS)


# ---- The kind of an index by its size ----------------------------------------------------------------


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
        name, fingerprint, dimension, window = "numbered", "n" * 32, 32, None

        def embed(self, texts, *, is_query: bool = False):
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
