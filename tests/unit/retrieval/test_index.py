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
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME, Snapshot
from tests.unit.retrieval.helpers import edit, make_index


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


@pytest.mark.parametrize("version", [2, 7])
def test_an_unknown_version(directory: Path, chunks: list[Document], embedder, version: int) -> None:
    if version == 2:  # had no words
        edit(directory, "DROP TABLE vocabulary")
        edit(directory, "DROP TABLE words")
    edit(directory, f"PRAGMA user_version = {version}")
    assert refusal(directory) == (
        f"This Tandem reads index version 3, but {directory} has version {version}; "
        "build it again with `tandem index`, or use the Tandem that wrote it."
    )
    assert len(make_index(directory, chunks[:2], embedder)) == 2


FILES = ["vectors-1.faiss", "vectors-1.npy"]


@pytest.fixture
def coded(tmp_path: Path, chunks: list[Document], embedder) -> Path:
    """An index that has every file."""
    make_index(tmp_path / "coded", chunks, embedder, "SQ8").close()
    return tmp_path / "coded"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_file_that_is_not_as_it_was_written(coded: Path, name: str, damage: str) -> None:
    path, whole = coded / name, (coded / name).read_bytes()
    middle = len(whole) // 2
    if damage == "missing":
        path.unlink()
        what = f"{name} is missing"
    elif damage == "truncated":
        path.write_bytes(whole[:-5])
        what = f"{name} has {len(whole) - 5} bytes instead of {len(whole)}"
    else:
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        what = f"{name} does not match its checksum"
    assert refusal(coded) == damaged(coded, what)


def state(directory: Path) -> Any:
    """What an index answers."""
    index = Index.open(directory)
    rows = [index.search(np.ones(32, np.float32), 3, {"source": f"{name}"})[0].tolist() for name in SOURCES]
    answers = (list(index.chunks()), index.ids(), index.rows(index.ids()).tolist(), rows)
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
    assert refusal(directory) == damaged(directory, "its manifest is not readable JSON")


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("dimension", 8, "its vectors have dimension 32, its manifest says 8"),
        ("count", 4, "its counts differ (3 vectors, 4 in the manifest)"),
    ],
)
def test_a_manifest_of_other_vectors(directory: Path, field: str, value: int, what: str) -> None:
    edit_manifest(directory, lambda body: body.update({field: value}))
    assert refusal(directory) == damaged(directory, what)
