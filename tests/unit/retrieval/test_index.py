"""Index on disk: built, opened, and refused for every way in which it may not fit. Sentences are pinned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval.chunking import split
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.manifest import checksum


def refusal(directory: Path, fingerprint: str | None = None) -> str:
    with pytest.raises(RetrievalError) as caught:
        Index.open(directory, fingerprint)
    return str(caught.value)


def damaged(directory: Path, what: str) -> str:
    return f"The index {directory} is damaged: {what}; build it again with `tandem index`."


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "manifest.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


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
    monkeypatch.setattr("tandem.retrieval.embedded.EMBED_AT_ONCE", 2)
    chunks = split([Document(page_content=f"page {n}", metadata={"source": f"{n}"}) for n in range(5)])
    seen: list[tuple[int, int]] = []
    Index.build(tmp_path / "i", chunks, embedder, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]


def test_no_index(tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", tmp_path):
        assert refusal(directory) == (
            f"An index must hold a manifest.json, but {directory} has none; build it with `tandem index`."
        )


def test_another_embedder(directory: Path, embedder, other_embedder) -> None:
    assert refusal(directory, other_embedder.fingerprint) == (
        f"An index must be searched with the embedder that built it, but {directory} was built with words "
        f"({embedder.fingerprint[:8]}) and the embedder here is {other_embedder.fingerprint[:8]}; "
        "use that embedder, or build the index again with `tandem index`."
    )


def test_an_unknown_version(directory: Path) -> None:
    edit_manifest(directory, lambda body: body.update(version=7))
    assert refusal(directory) == (
        f"This Tandem reads index version 1, but {directory} has version 7; "
        "build it again with `tandem index`, or use the Tandem that wrote it."
    )


@pytest.mark.parametrize("name", ["vectors.faiss", "chunks.jsonl", "rows.npy"])
def test_a_missing_file(directory: Path, name: str) -> None:
    (directory / "data-1" / name).unlink()
    assert refusal(directory) == damaged(directory, f"{name} is missing")


@pytest.mark.parametrize("name", ["vectors.faiss", "chunks.jsonl", "rows.npy"])
def test_a_truncated_file(directory: Path, name: str) -> None:
    path = directory / "data-1" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert refusal(directory) == damaged(
        directory, f"{name} has {len(whole) - 5} bytes instead of {len(whole)}"
    )


@pytest.mark.parametrize("name", ["vectors.faiss", "chunks.jsonl", "rows.npy"])
def test_a_flipped_bit(directory: Path, name: str) -> None:
    path = directory / "data-1" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert refusal(directory) == damaged(directory, f"{name} does not match its checksum")


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100_000])
def test_a_manifest_that_is_not_json(directory: Path, text: str) -> None:
    (directory / "manifest.json").write_text(text, errors="surrogateescape")
    assert refusal(directory) == damaged(directory, "manifest.json is not readable JSON")


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"format": "other"}'])
def test_a_manifest_of_something_else(directory: Path, text: str) -> None:
    (directory / "manifest.json").write_text(text)
    assert refusal(directory) == damaged(directory, 'manifest.json lacks "format": "tandem-index"')


@pytest.mark.parametrize("field", ["count", "dimension", "embedder", "factory", "folder", "files", "id_key"])
def test_a_manifest_without_a_field(directory: Path, field: str) -> None:
    edit_manifest(directory, lambda body: body.pop(field))
    assert refusal(directory) == damaged(directory, f'manifest.json lacks a proper "{field}"')


@pytest.mark.parametrize("value", [{"vectors.faiss": {}}, {"a": 3}])
def test_a_manifest_with_bad_checksums(directory: Path, value: object) -> None:
    edit_manifest(directory, lambda body: body.update(files=value))
    assert refusal(directory) == damaged(directory, 'manifest.json lacks a proper "files" or "id_key"')


def test_a_manifest_of_another_dimension(directory: Path) -> None:
    edit_manifest(directory, lambda body: body.update(dimension=8))
    assert refusal(directory) == damaged(directory, "its vectors have dimension 32, its manifest says 8")


def test_a_manifest_of_another_count(directory: Path) -> None:
    edit_manifest(directory, lambda body: body.update(count=4))
    assert refusal(directory) == damaged(
        directory, "its counts differ (3 vectors, 3 chunks, 4 in the manifest)"
    )


@pytest.mark.parametrize("name", ["vectors.faiss", "chunks.jsonl", "rows.npy"])
def test_a_file_of_another_kind_though_its_checksum_fits(directory: Path, name: str) -> None:
    path = directory / "data-1" / name
    path.write_bytes(b"something else")
    new = checksum(path)
    edit_manifest(
        directory,
        lambda body: body["files"][name].update(num_bytes=new.num_bytes, sha256=new.sha256),
    )
    assert refusal(directory).startswith(f"The index {directory} is damaged: a file cannot be read (")


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
        Index.build(tmp_path / "i", [], embedder)
    assert str(caught.value) == (
        f"An index needs at least one chunk, but {tmp_path}/i would get none; add documents."
    )
    assert not (tmp_path / "i").exists()
