"""FAISS kinds: search, vectors given back, training needs, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.index import VectorIndex

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


@pytest.mark.parametrize("factory", ["Flat", "IVF8,PQ8", "HNSW16"])
def test_equal_vectors_give_an_equal_file(tmp_path: Path, factory: str) -> None:
    for name in ("a", "b"):
        VectorIndex.build(VECTORS, factory).write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_k_beyond_the_count_gives_all() -> None:
    rows, scores = VectorIndex.build(VECTORS[:3], "Flat").search(VECTORS[0], 10)
    assert sorted(rows.tolist()) == [0, 1, 2]
    assert len(scores) == 3


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


@pytest.mark.parametrize("factory", ["IVF300,Flat", "PQ4x8", "IVF8,PQ4x8"])
def test_just_enough_vectors_train_without_a_word(factory: str, capfd: pytest.CaptureFixture[str]) -> None:
    VectorIndex.build(VECTORS, factory)
    assert capfd.readouterr() == ("", "")


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


def test_an_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        VectorIndex.build(VECTORS, "Flat").write(tmp_path / "none" / "v")


@pytest.mark.parametrize("count", [3, 300])
def test_a_full_disk_is_noticed_to_the_last_byte(count: int) -> None:
    with pytest.raises(OSError, match="No space left"):
        VectorIndex.build(VECTORS[:count], "Flat").write(Path("/dev/full"))


@pytest.mark.parametrize("factory", EXACT + QUANTISED)
def test_exact_means_that_the_very_vectors_come_back(factory: str) -> None:
    index = VectorIndex.build(VECTORS, factory)
    assert index.is_exact == np.array_equal(index.vectors(np.arange(300)), VECTORS)


def test_training_takes_rows_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.retrieval.index.MIN_TRAIN", 100)
    monkeypatch.setattr("tandem.retrieval.index.ADD_AT_ONCE", 70)
    halves = np.concatenate([VECTORS[:150] * 0 + VECTORS[0], VECTORS[150:]])
    index = VectorIndex.build(halves, "IVF2,Flat")
    assert np.array_equal(index.vectors(np.arange(300)), halves)
    assert index.search(VECTORS[200], 1)[0].tolist() == [200]
