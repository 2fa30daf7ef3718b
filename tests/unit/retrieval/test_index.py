"""Index on disk: built, opened, and refused for every way in which it may not fit. Sentences are pinned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document, split
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME, Snapshot
from tests.unit.retrieval.helpers import CHUNK_CHARS, OVERLAP, edit, make_index


def refusal(directory: Path, fingerprint: str | None = None) -> str:
    with pytest.raises(RetrievalError) as caught:
        Index.open(directory, fingerprint)
    return str(caught.value)


def damaged(directory: Path, what: str) -> str:
    return f"The index {directory} is damaged: {what}; build it again with `tandem index`."


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = Index.open(directory)
    index.close()
    body = asdict(index.manifest)
    change(body)
    edit(directory, "UPDATE manifest SET body = ?", json.dumps(body))


def test_build_and_open(directory: Path, chunks: list[Document], embedder) -> None:
    index = Index.open(directory, embedder.fingerprint)
    assert (len(index), index.dimension, index.manifest.factory) == (3, 32, "Flat")
    assert [index.document(row) for row in range(3)] == chunks
    assert index.rows([chunks[2].id]).tolist() == [2]
    expected = embedder.embed([chunk.page_content for chunk in chunks])
    assert np.array_equal(index.vectors(np.arange(3)), expected)
    rows, _ = index.search(expected[1], 2)
    assert rows[0] == 1


def test_an_index_can_be_moved(directory: Path, tmp_path: Path) -> None:
    directory.rename(tmp_path / "elsewhere")
    assert len(Index.open(tmp_path / "elsewhere")) == 3


def test_progress_counts_to_the_end(tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.retrieval.build.EMBED_AT_ONCE", 2)
    documents = [Document(page_content=f"page {n}", metadata={"source": f"{n}"}) for n in range(5)]
    chunks = split(documents, CHUNK_CHARS, OVERLAP)
    seen: list[tuple[int, int]] = []
    make_index(tmp_path / "i", chunks, embedder, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]


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


@pytest.mark.parametrize("what", ["vector = zeroblob(128)", "key = x'00'", "digest = x'00'", "number = 9"])
def test_a_vector_that_is_not_what_was_written(
    directory: Path, chunks: list[Document], embedder, what: str
) -> None:
    edit(directory, f"UPDATE vectors SET {what} WHERE number = 2")
    assert refusal(directory) == damaged(directory, f"the vector of row 1 of {NAME} is not what was written")
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
    """Every 37th byte: the index is refused with one sentence, or the byte does not matter (it is in free space)."""
    before, path = state(directory), directory / NAME
    whole = path.read_bytes()
    num_refused = 0
    for place in range(0, len(whole), 37):
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


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_manifest_that_is_not_json(directory: Path, text: str) -> None:
    edit(directory, "UPDATE manifest SET body = ?", text)
    assert refusal(directory) == damaged(directory, "its manifest cannot be read")


@pytest.mark.parametrize("text", ["{}", "[]", "3"])
def test_a_manifest_of_something_else(directory: Path, text: str, chunks: list[Document], embedder) -> None:
    edit(directory, "UPDATE manifest SET body = ?", text)
    assert refusal(directory) == damaged(directory, "its manifest cannot be read")
    assert len(make_index(directory, chunks, embedder)) == 3


def test_a_database_of_another_program(directory: Path, chunks: list[Document], embedder) -> None:
    edit(directory, "PRAGMA application_id = 1")
    assert refusal(directory) == damaged(directory, f"{NAME} is not a database of Tandem's")
    (directory / NAME).write_text("not a database, but long enough to be taken for one " * 100)
    assert refusal(directory) == damaged(directory, f"{NAME} cannot be read (file is not a database)")
    assert len(make_index(directory, chunks, embedder)) == 3


@pytest.mark.parametrize("field", ["count", "dimension", "embedder", "factory", "id_key", "roots"])
def test_a_manifest_without_a_proper_field(directory: Path, field: str) -> None:
    edit_manifest(directory, lambda body: body.update({field: None}))
    assert refusal(directory) == damaged(directory, "its manifest cannot be read")
    edit(directory, "UPDATE manifest SET body = json_remove(body, ?)", f"$.{field}")
    assert refusal(directory) == damaged(directory, "its manifest cannot be read")


@pytest.mark.parametrize(("field", "value"), [("dimension", 8), ("count", 4), ("roots", ["/elsewhere"])])
def test_a_manifest_that_was_changed(directory: Path, field: str, value: object) -> None:
    edit_manifest(directory, lambda body: body.update({field: value}))
    assert refusal(directory) == damaged(directory, f"{NAME} does not match its checksum")


def test_a_folder_that_nobody_may_write_to(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created next to the database, as on a read-only disk."""
    monkeypatch.setattr("os.access", lambda *_: False)
    index = Index.open(directory)
    assert [path.name for path in directory.iterdir()] == [NAME]
    assert index.document(2).metadata["source"] == "soup.txt"


def test_search_arguments(directory: Path) -> None:
    index = Index.open(directory)
    with pytest.raises(RetrievalError) as caught:
        index.search(np.ones(32, np.float32), 0)
    assert str(caught.value) == "A search must ask for at least 1 document, but k is 0; raise it."
    with pytest.raises(RetrievalError) as caught:
        index.search(np.ones(8, np.float32), 1)
    assert str(caught.value) == (
        "The index holds vectors of dimension 32, but the query's has shape (8,); "
        "use the embedder that built it."
    )


def test_no_chunks(tmp_path: Path, embedder) -> None:
    with pytest.raises(RetrievalError) as caught:
        make_index(tmp_path / "i", [], embedder)
    assert str(caught.value) == (
        f"An index needs at least one chunk, but {tmp_path}/i would get none; add documents."
    )
    assert not (tmp_path / "i").exists()
