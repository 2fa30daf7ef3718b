"""Builds that fail, are killed, meet readers or each other: what was indexed before is never lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import manifest as manifests
from tandem.retrieval import storage
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index


def test_a_rebuild_replaces_and_tidies_up(directory: Path, chunks: list[Document], embedder) -> None:
    before = Index.open(directory)
    Index.build(directory, chunks[:2], embedder)
    assert len(Index.open(directory)) == 2
    assert sorted(path.name for path in directory.iterdir()) == [".lock", "data-2", "manifest.json"]
    assert before.document(2) == chunks[2]  # one that is open stays whole


def test_a_reader_that_comes_while_the_index_is_replaced(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, is_first = manifests.verify, iter([True])

    def late(where: Path, manifest: manifests.Manifest) -> None:
        if next(is_first, False):
            Index.build(directory, chunks[:2], embedder)
        verify(where, manifest)

    monkeypatch.setattr(manifests, "verify", late)
    assert len(Index.open(directory)) == 2


def test_a_reader_that_comes_while_the_index_is_replaced_after_its_checksums(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, is_first = manifests.verify, iter([True])

    def early(where: Path, manifest: manifests.Manifest) -> None:
        verify(where, manifest)
        if next(is_first, False):
            Index.build(directory, chunks[:2], embedder)

    monkeypatch.setattr(manifests, "verify", early)
    assert len(Index.open(directory)) == 2


class Stop(BaseException):
    """Ends a build as Ctrl-C or the death of the process would."""


@pytest.mark.parametrize("error", [Stop, OSError])
@pytest.mark.parametrize(
    "target",
    [
        "tandem.retrieval.chunks.write",
        "tandem.retrieval.embedded.write",
        "tandem.retrieval.writer.VectorIndex.build",
        "tandem.retrieval.writer.VectorIndex.write",
        "tandem.retrieval.writer.checksum",
        "tandem.retrieval.storage._next_name",
        "tandem.retrieval.storage.manifests.write",
        "os.replace",
    ],
)
def test_a_build_that_fails_anywhere_loses_nothing(
    directory: Path,
    chunks: list[Document],
    embedder,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    error: type[BaseException],
) -> None:
    def fail(*args: object, **named: object) -> None:
        raise error("told to")

    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        with pytest.raises((Stop, RetrievalError)):
            Index.build(directory, chunks[:1], embedder)
    assert len(Index.open(directory)) == 3
    Index.build(directory, chunks[:1], embedder)
    assert len(Index.open(directory)) == 1
    assert sorted(path.name for path in directory.iterdir())[0::2] == [".lock", "manifest.json"]


@pytest.mark.parametrize("num_allowed", range(7))
def test_flushing_that_fails_at_any_call_leaves_a_whole_index(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch, num_allowed: int
) -> None:
    flush, allowed = storage._flush, iter(range(num_allowed))

    def limited(path: Path) -> None:
        if next(allowed, None) is None:
            raise OSError(5, "Input/output error")
        flush(path)

    monkeypatch.setattr(storage, "_flush", limited)
    with pytest.raises(RetrievalError, match="Input/output error"):
        Index.build(directory, chunks[:1], embedder)
    is_replaced = num_allowed == 6  # the last flush comes after the manifest's rename
    assert len(Index.open(directory)) == (1 if is_replaced else 3)


def test_a_full_disk(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tandem.retrieval.writer.VectorIndex.write", full)
    with pytest.raises(RetrievalError) as caught:
        Index.build(directory, chunks, embedder)
    assert str(caught.value) == (
        f"The index {directory} could not be written (No space left on device); what it held before is kept: "
        "free space or check its rights, then build again."
    )


def test_a_second_builder_is_refused(directory: Path, chunks: list[Document], embedder) -> None:
    with storage.staging(directory), pytest.raises(RetrievalError) as caught:
        Index.build(directory, chunks, embedder)
    assert str(caught.value) == (
        f"One process at a time may build an index, and another is building {directory}; wait for it."
    )
    Index.build(directory, chunks, embedder)


def test_what_a_killed_build_left_is_removed(directory: Path, chunks: list[Document], embedder) -> None:
    script = (
        "import os, sys, pathlib; from tandem.retrieval.storage import staging\n"
        "with staging(pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'vectors.faiss').write_bytes(b'half'); os._exit(9)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(directory)], check=False)
    assert ended.returncode == 9
    assert list(directory.glob(".building-*"))
    assert len(Index.open(directory)) == 3
    Index.build(directory, chunks, embedder)
    assert not list(directory.glob(".building-*"))


def test_foreign_folders_are_not_overwritten(tmp_path: Path, chunks: list[Document], embedder) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(RetrievalError) as caught:
        Index.build(tmp_path, chunks, embedder)
    assert str(caught.value) == (
        f"An index needs a folder of its own, but {tmp_path} holds a manifest.json that is not Tandem's; "
        "choose another folder."
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(RetrievalError) as caught:
        Index.build(tmp_path / "file", chunks, embedder)
    assert str(caught.value) == (
        f"An index needs a folder of its own, but {tmp_path}/file is a file; choose another folder."
    )


def test_a_damaged_manifest_can_be_rebuilt(directory: Path, chunks: list[Document], embedder) -> None:
    (directory / "manifest.json").write_text("")
    Index.build(directory, chunks, embedder)
    assert len(Index.open(directory)) == 3
