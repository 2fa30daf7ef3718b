"""Index on disk: built, opened, and refused for every way in which it may not fit. Sentences are pinned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import index as kinds
from tandem.retrieval.build import build_index, update_index, write_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index, VectorIndex
from tandem.retrieval.store import NAME, Snapshot
from tests.unit.retrieval.helpers import edit, make_index, refused


def refusal(directory: Path, fingerprint: str | None = None) -> str:
    with pytest.raises(RetrievalError) as caught:
        Index.open(directory, fingerprint)
    return str(caught.value)


def damaged(directory: Path, what: str) -> str:
    return f"The index {directory} is damaged: {what}; build it again with `tandem index`."


def test_build_and_open(directory: Path, chunks: list[Document], embedder) -> None:
    index = Index.open(directory, embedder.fingerprint)
    assert (len(index), index.manifest.dimension, index.manifest.factory) == (3, 32, "Flat")
    assert [index.document(row) for row in range(3)] == chunks
    assert index.rows([chunks[2].id]).tolist() == [2]
    expected = embedder.embed([chunk.page_content for chunk in chunks])
    assert np.array_equal(index.vectors(np.arange(3)), expected)
    rows, _ = index.search(expected[1], 2)
    assert rows[0] == 1


def test_no_index(tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", tmp_path):
        assert refusal(directory) == (
            f"An index must hold a tandem-index.sqlite, but {directory} has none; build it with `tandem index`."
        )


def test_another_embedder(directory: Path, embedder, other_embedder) -> None:
    assert refusal(directory, other_embedder.fingerprint) == (
        f"An index must be searched with the embedder that built it, but {directory} was built with words "
        f"({embedder.fingerprint[:8]}) and the embedder here is {other_embedder.fingerprint[:8]}; "
        "use that embedder, or build the index again with `tandem index`."
    )


@pytest.mark.parametrize(("version", "age"), [(3, "an earlier"), (7, "a later")])
def test_another_version(directory: Path, chunks: list[Document], embedder, version: int, age: str) -> None:
    if version == 3:  # had its vectors in files
        edit(directory, "DROP TABLE vectors")
        for name in ("vectors-1.faiss", "vectors-1.npy", "embedded.sqlite"):
            (directory / name).write_bytes(b"")
    edit(directory, f"PRAGMA user_version = {version}")
    assert refusal(directory) == (
        f"The index {directory} was written by {age} version of Tandem; run `tandem index` again."
    )
    make_index(directory, chunks[:2], embedder).close()
    assert len(Index.open(directory)) == 2
    assert [path.name for path in directory.iterdir()] == [NAME]


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_trained_index_is_made_again_of_the_vectors(
    tmp_path: Path, chunks: list[Document], embedder, damage: str
) -> None:
    directory = tmp_path / "trained"
    whole = make_index(directory, chunks, embedder, "IVF2,Flat")
    path = directory / whole.manifest.trained
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:-5])
    else:
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    index = Index.open(directory)
    assert np.array_equal(index.vectors(np.arange(3)), whole.vectors(np.arange(3)))
    query = embedder.embed(["puzzle"])[0]
    assert [each.tolist() for each in index.search(query, 3)] == [
        each.tolist() for each in whole.search(query, 3)
    ]


VECTOR = f"the vector of row 1 of {NAME} is not what was written"
MANIFEST = "its manifest cannot be read"
FIELDS = ("count", "dimension", "embedder", "factory", "id_key", "roots")
CHANGES = {"dimension": "8", "count": "4", "roots": '["/elsewhere"]'}
DAMAGE = {
    **{
        f"UPDATE vectors SET {what} WHERE number = 2": VECTOR
        for what in ("vector = zeroblob(128)", "key = x'00'", "digest = x'00'", "number = 9")
    },
    **{f"UPDATE manifest SET body = '{text}'": MANIFEST for text in ("{", "{}", "[]", "3")},
    "UPDATE manifest SET body = printf('%.*c', 100000, '[')": MANIFEST,
    **{f"UPDATE manifest SET body = json_set(body, '$.{field}', NULL)": MANIFEST for field in FIELDS},
    **{f"UPDATE manifest SET body = json_remove(body, '$.{field}')": MANIFEST for field in FIELDS},
    **{
        f"UPDATE manifest SET body = json_set(body, '$.{field}', json('{value}'))": (
            f"{NAME} does not match its checksum"
        )
        for field, value in CHANGES.items()
    },
    "PRAGMA application_id = 1": f"{NAME} is not a database of Tandem's",
}
"""What is done to the database, and what is said of it."""


@pytest.mark.parametrize("statement", DAMAGE)
def test_damage_is_one_sentence_and_the_next_build_repairs_it(
    directory: Path, chunks: list[Document], embedder, statement: str
) -> None:
    edit(directory, statement)
    assert refusal(directory) == damaged(directory, DAMAGE[statement])
    assert len(make_index(directory, chunks, embedder)) == 3


def state(directory: Path) -> Any:
    """What an index answers."""
    index = Index.open(directory)
    rows = [index.search(np.ones(32, np.float32), 3, {"source": f"{name}"})[0].tolist() for name in SOURCES]
    chunks = list(index.chunks())
    found = index.rows([str(chunk.id) for chunk in chunks]).tolist()
    answers = (chunks, found, rows, index.vectors(np.arange(len(index))).tolist())
    index.close()
    return answers


SOURCES = ("chess.txt", "puzzle.md", "soup.txt")


def test_a_flipped_bit_anywhere_in_the_database_changes_no_answer(directory: Path) -> None:
    """Every 53rd byte: the index is refused with one sentence, or the byte does not matter (it is in free space)."""
    before, path = state(directory), directory / NAME
    whole = path.read_bytes()
    num_refused = 0
    for place in range(0, len(whole), 53):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            assert state(directory) == before, place
        except RetrievalError:
            num_refused += 1
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert num_refused > 20
    path.write_bytes(whole)
    assert state(directory) == before


@pytest.mark.parametrize("column", ["text", "metadata", "id"])
def test_the_text_of_a_damaged_row_is_in_no_sentence(directory: Path, column: str) -> None:
    """SQLite's module quotes a text that is not UTF-8."""
    opened = Index.open(directory)
    opened.close()
    edit(directory, f"UPDATE chunks SET {column} = CAST(? AS TEXT) WHERE row = 1", b"private \xff words")
    sentence = f"row 1 of {NAME} cannot be read (a text in it is not UTF-8)"
    assert refusal(directory) == damaged(directory, sentence)
    with Snapshot(directory) as snapshot, pytest.raises(RetrievalError) as caught:
        snapshot.documents([0, 1])
    assert str(caught.value) == damaged(directory, sentence)
    assert caught.value.__cause__ is None


def test_a_row_that_is_not_what_was_written(directory: Path) -> None:
    edit(directory, "UPDATE chunks SET metadata = '{private' WHERE row = 2")
    with Snapshot(directory) as snapshot, pytest.raises(RetrievalError) as caught:
        list(snapshot.chunks())
    assert str(caught.value) == damaged(
        directory, f"row 2 of {NAME} cannot be read (it is not what was written)"
    )


@pytest.mark.parametrize("length", [100, 5000, -5000])
def test_a_truncated_database(directory: Path, length: int, chunks: list[Document], embedder) -> None:
    path = directory / NAME
    path.write_bytes(path.read_bytes()[:length])
    assert refusal(directory).startswith(f"The index {directory} is damaged: {NAME} ")
    assert len(make_index(directory, chunks, embedder)) == 3


def test_a_file_of_another_program(directory: Path, chunks: list[Document], embedder) -> None:
    (directory / NAME).write_text("not a database, but long enough to be taken for one " * 100)
    assert refusal(directory) == damaged(directory, f"{NAME} cannot be read (file is not a database)")
    assert len(make_index(directory, chunks, embedder)) == 3


def test_a_folder_that_nobody_may_write_to(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created next to the database, as on a read-only disk."""
    monkeypatch.setattr("os.access", lambda *_: False)
    index = Index.open(directory)
    assert [path.name for path in directory.iterdir()] == [NAME]
    assert index.document(2).metadata["source"] == "soup.txt"


def test_search_arguments(directory: Path) -> None:
    index = Index.open(directory)
    with pytest.raises(
        RetrievalError, match=r"^A search must ask for at least 1 document, but k is 0; raise it\.$"
    ):
        index.search(np.ones(32, np.float32), 0)
    with refused(
        "The index holds vectors of dimension 32, but the query's has shape (8,); "
        "use the embedder that built it."
    ):
        index.search(np.ones(8, np.float32), 1)


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
