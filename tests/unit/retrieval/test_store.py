"""Builds that fail, are killed, meet readers or each other: what was indexed before is never lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import store
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME
from tests.unit.retrieval.helpers import make_index


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_rebuild_replaces_and_tidies_up(directory: Path, chunks: list[Document], embedder) -> None:
    before = Index.open(directory)
    make_index(directory, chunks[:2], embedder).close()
    assert len(Index.open(directory)) == 2
    assert before.document(2) == chunks[2]  # one that is open stays whole
    assert before.rows([str(chunks[2].id)]).tolist() == [2]
    before.close()
    assert names(directory) == [NAME, "vectors-2.faiss"]


@pytest.mark.parametrize("is_late", [True, False])
def test_a_reader_that_comes_while_the_index_is_replaced(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Before its checksums are compared, or after."""
    verify, is_first = store.Snapshot.verify, iter([True])

    def interrupted(self: store.Snapshot) -> None:
        if not is_late:
            verify(self)
        if next(is_first, False):
            make_index(directory, chunks[:2], embedder)
        if is_late:
            verify(self)

    monkeypatch.setattr(store.Snapshot, "verify", interrupted)
    assert len(Index.open(directory)) == 2


def test_readers_see_old_or_new_while_an_index_is_replaced(
    directory: Path, chunks: list[Document], embedder
) -> None:
    """Never a mixture: vectors, texts and metadata are those of one build."""
    is_over = threading.Event()

    def write() -> None:
        for number in range(12):
            make_index(directory, chunks[: 1 + number % 3], embedder, ("Flat", "SQ8")[number % 2]).close()
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    counts = set()
    while not is_over.is_set():
        index = Index.open(directory)
        texts = [chunk.page_content for chunk in index.chunks()]
        assert texts == [chunk.page_content for chunk in chunks[: len(index)]]
        assert np.array_equal(index.vectors(np.arange(len(index))), embedder.embed(texts))
        counts.add(len(index))
        index.close()
    writer.join()
    assert len(counts) > 1


class Stop(BaseException):
    """Ends a build as Ctrl-C or the death of the process would."""


@pytest.mark.parametrize("error", [Stop, OSError])
@pytest.mark.parametrize(
    "target",
    [
        "tandem.retrieval.store.Writer.replace_chunks",
        "tandem.retrieval.store.hash_tables",
        "tandem.retrieval.build.Journal.append",
        "tandem.retrieval.build.Journal.vectors",
        "tandem.retrieval.build.VectorIndex.build",
        "tandem.retrieval.build.VectorIndex.write",
        "tandem.retrieval.build.checksum",
        "tandem.retrieval.store.Writer.make_file",
        "tandem.retrieval.store.Writer.commit",
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

    other = [Document(id="other", page_content="a text that must be embedded", metadata={})]
    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        with pytest.raises((Stop, RetrievalError)):
            make_index(directory, other, embedder)
    assert list(Index.open(directory).chunks()) == chunks
    assert len(make_index(directory, other, embedder)) == 1
    assert names(directory) == [NAME, "vectors-2.faiss"]


@pytest.mark.parametrize("num_allowed", range(2))
def test_flushing_that_fails_at_any_call_leaves_a_whole_index(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch, num_allowed: int
) -> None:
    flush, allowed = store.flush, iter(range(num_allowed))

    def limited(path: Path) -> None:
        if next(allowed, None) is None:
            raise OSError(5, "Input/output error")
        flush(path)

    monkeypatch.setattr(store, "flush", limited)
    with pytest.raises(RetrievalError, match="Input/output error"):
        make_index(directory, chunks[:1], embedder)
    assert len(Index.open(directory)) == 3


def test_a_full_disk(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tandem.retrieval.build.VectorIndex.write", full)
    with pytest.raises(RetrievalError) as caught:
        make_index(directory, chunks, embedder)
    assert str(caught.value) == (
        f"The index {directory} could not be written (No space left on device); what it held before is kept: "
        "free space or check its rights, then build again."
    )


def test_a_second_builder_is_refused(directory: Path, chunks: list[Document], embedder) -> None:
    with store.writing(directory), pytest.raises(RetrievalError) as caught:
        make_index(directory, chunks, embedder)
    assert str(caught.value) == (
        f"One process at a time may build an index, and another is building {directory}; wait for it."
    )
    make_index(directory, chunks, embedder)


def test_a_second_builder_in_another_process_is_refused(
    directory: Path, chunks: list[Document], embedder
) -> None:
    script = (
        "import sys, pathlib; from tandem.retrieval.store import writing\n"
        "with writing(pathlib.Path(sys.argv[1])):\n"
        "    print('writing', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        with pytest.raises(RetrievalError, match="another is building"):
            make_index(directory, chunks[:1], embedder)
        assert len(Index.open(directory)) == 3
        other.kill()
    assert len(make_index(directory, chunks[:1], embedder)) == 1


def test_what_a_killed_build_left_is_removed(directory: Path, chunks: list[Document], embedder) -> None:
    script = (
        "import os, sys, pathlib; from tandem.retrieval.store import writing\n"
        "with writing(pathlib.Path(sys.argv[1])) as writer:\n"
        "    writer.make_file('faiss').write_bytes(b'half'); writer.make_file('npy'); os._exit(9)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(directory)], check=False)
    assert ended.returncode == 9
    assert {"vectors-2.faiss", "vectors-2.npy"} < set(names(directory))
    assert len(Index.open(directory)) == 3
    make_index(directory, chunks, embedder).close()
    assert names(directory) == [NAME, "vectors-2.faiss"]


def test_a_first_build_that_was_killed_leaves_no_index(
    tmp_path: Path, chunks: list[Document], embedder
) -> None:
    script = (
        "import os, sys, pathlib; from tandem.retrieval.store import writing\n"
        "with writing(pathlib.Path(sys.argv[1])) as writer:\n"
        "    writer.replace_chunks([]); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    with pytest.raises(RetrievalError, match="has none"):
        Index.open(tmp_path)
    assert len(make_index(tmp_path, chunks, embedder)) == 3


def test_foreign_folders_are_not_overwritten(tmp_path: Path, chunks: list[Document], embedder) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(RetrievalError) as caught:
        make_index(tmp_path, chunks, embedder)
    assert str(caught.value) == (
        f"An index needs a folder of its own, but {tmp_path} holds a manifest.json, which no index of this version "
        "has; choose another folder."
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(RetrievalError) as caught:
        make_index(tmp_path / "file", chunks, embedder)
    assert str(caught.value) == (
        f"An index needs a folder of its own, but {tmp_path}/file is a file; choose another folder."
    )
