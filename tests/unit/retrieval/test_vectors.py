"""FAISS kinds: chosen by size, trained, searched, and what they give back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.retrieval import index as kinds
from tandem.retrieval.build import build_index, update_index, write_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index, VectorIndex
from tests.unit.retrieval.helpers import refused

KINDS = ["Flat", "IVF8,Flat"]


def unit_vectors(count: int, dimension: int = 32) -> NDArray[np.float32]:
    vectors = np.random.default_rng(5).normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = unit_vectors(300)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_back_the_very_vectors_and_inner_products(kind: str) -> None:
    index = VectorIndex.build(VECTORS, kind)
    assert len(index) == 300
    assert np.array_equal(index.vectors(np.arange(300)), VECTORS)
    assert np.array_equal(index.vectors(np.array([7, 3, 7])), VECTORS[[7, 3, 7]])
    rows, scores = index.search(VECTORS[7], 4)
    assert rows[0] == 7
    np.testing.assert_allclose(scores, VECTORS[rows] @ VECTORS[7], atol=1e-6)
    assert (np.diff(scores) <= 0).all()
    for query in unit_vectors(320)[300:] if kind == "Flat" else ():
        best = np.argsort(-(VECTORS @ query), kind="stable")[:3]
        assert index.search(query, 3)[0].tolist() == best.tolist()


def test_a_trained_index_survives_the_disk(tmp_path: Path) -> None:
    built = VectorIndex.build(VECTORS, "IVF8,Flat")
    name = built.write(tmp_path)
    index = VectorIndex.read(tmp_path / name)
    assert np.array_equal(index.vectors(np.arange(300)), VECTORS)
    for query in VECTORS[:20]:
        assert [each.tolist() for each in index.search(query, 5)] == [
            each.tolist() for each in built.search(query, 5)
        ]
    assert VectorIndex.build(VECTORS, "IVF8,Flat").write(tmp_path) == name, "equal vectors give an equal file"
    with pytest.raises(OSError, match="is not what was written"):
        VectorIndex.read((tmp_path / name).rename(tmp_path / "vectors-0.faiss"))


def test_k_beyond_the_count_gives_all() -> None:
    rows, scores = VectorIndex.build(VECTORS[:3], "Flat").search(VECTORS[0], 10)
    assert sorted(rows.tolist()) == [0, 1, 2]
    assert len(scores) == 3


def test_too_few_vectors_to_train(directory: Path, chunks: list[Document], embedder) -> None:
    with refused(
        'The index kind "IVF4,Flat" needs at least 4 chunks to train, but there are 3; use "Flat", a smaller kind, or '
        "more documents."
    ):
        write_index(directory, chunks, embedder, "IVF4,Flat")
    assert len(Index.open(directory)) == 3


def test_just_enough_vectors_train_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    VectorIndex.build(VECTORS, "IVF300,Flat")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("factory", ["nonsense", "", "HNSW32", "IVF8,PQ8", "IVF0,Flat", "IVF8,Flat "])
def test_a_kind_that_there_is_not(factory: str) -> None:
    with refused(
        f'An index is of the kind "Flat" or "IVF<lists>,Flat", but {factory!r} was asked for; use one like '
        '"IVF512,Flat", or "auto".'
    ):
        kinds.resolve(factory, 300)


def test_a_full_disk_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Error in void faiss::write_index\nwrite error (No space left on device)")

    monkeypatch.setattr("faiss.write_index", refuse)
    with pytest.raises(OSError, match=r"^write error \(No space left on device\)$"):
        VectorIndex.build(VECTORS, "IVF8,Flat").write(tmp_path)


def test_training_takes_rows_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.retrieval.index.MIN_TRAIN", 100)
    halves = np.concatenate([VECTORS[:150] * 0 + VECTORS[0], VECTORS[150:]])
    index = VectorIndex.build(halves, "IVF2,Flat")
    assert np.array_equal(index.vectors(np.arange(300)), halves)
    assert index.search(VECTORS[200], 1)[0].tolist() == [200]


# ---- The kind of an index by its size ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "factory"),
    [
        (1, "Flat"),
        (99_999, "Flat"),
        (100_000, "IVF512,Flat"),
        (1_000_000, "IVF2048,Flat"),
        (21_000_000, "IVF8192,Flat"),
    ],
)
def test_by_size(count: int, factory: str) -> None:
    assert kinds.resolve("auto", count) == factory
    assert kinds.resolve("IVF8,Flat", count) == "IVF8,Flat"


def test_the_kind_is_chosen_when_the_index_grows_and_is_written_in_its_manifest(
    tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "FLAT_BELOW", 300)
    documents = [Document(id=f"{n}", page_content=f"text {n}", metadata={}) for n in range(600)]
    found = []
    for count in (299, 300, 600):
        num_embedded, manifest = write_index(tmp_path / "i", documents[:count], embedder)
        found.append((manifest.factory, num_embedded))
    assert found == [("Flat", 299), ("IVF32,Flat", 1), ("IVF64,Flat", 300)]


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
    build_index(texts[10:], directory, embedder, factory=kind)  # puts rows that were moved in their order
    assert build_index(texts[10:], directory, embedder, factory=kind).is_unchanged
    assert build_index(texts, directory, embedder, factory=kind).manifest.factory == kind
