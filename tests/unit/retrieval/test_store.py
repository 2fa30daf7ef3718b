"""Builds that fail, are killed, meet readers or each other, and what an unfinished one has embedded."""

from __future__ import annotations

import sqlite3
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
from tandem.retrieval.store import NAME, Journal, text_key
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
        raise error(28, "No space left on device")

    other = [Document(id="other", page_content="a text that must be embedded", metadata={})]
    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        with pytest.raises((Stop, RetrievalError)) as caught:
            make_index(directory, other, embedder)
    sentence = str(caught.value)
    del caught  # its frames hold an open index
    if error is OSError:
        assert sentence == (
            f"The index {directory} could not be written (No space left on device); what it held before is kept: "
            "free space or check its rights, then build again."
        )
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
        with pytest.raises(RetrievalError) as caught:
            make_index(directory, chunks[:1], embedder)
        assert str(caught.value) == (
            f"One process at a time may build an index, and another is building {directory}; wait for it."
        )
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


# ---- The journal of a build: what was appended comes back, and nothing that was not ------------------


KEYS = [text_key(text) for text in ("one", "two", "three")]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


def opened(path: Path, fingerprint: str = "f", dimension: int = 4) -> Journal:
    return Journal(path, fingerprint, dimension)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "j") as journal:
        journal.append(KEYS[:2], VECTORS[:2])
        journal.append(KEYS[2:], VECTORS[2:])
    return tmp_path / "j"


@pytest.mark.parametrize("column", ["key", "vector"])
def test_a_vector_that_does_not_fit_its_checksum_is_dropped_and_can_be_written_again(
    path: Path, column: str
) -> None:
    database = sqlite3.connect(path)
    (data,) = database.execute(f"SELECT {column} FROM embedded WHERE row = 1").fetchone()
    changed = bytes([data[0] ^ 4]) + data[1:]
    database.execute(f"UPDATE embedded SET {column} = ? WHERE row = 1", (changed,))
    database.commit()
    database.close()
    with opened(path) as journal:
        assert [key in journal for key in KEYS] == [False, True, True]
        journal.append(KEYS[:1], VECTORS[:1])
    with opened(path) as journal:
        assert np.array_equal(journal.vectors(KEYS), VECTORS)


@pytest.mark.parametrize("cut", [1, 1000, 65_536, 100_000])
def test_a_file_that_was_cut_off_gives_no_wrong_vector(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    with opened(path) as journal:
        known = [place for place, key in enumerate(KEYS) if key in journal]
        if known:
            assert np.array_equal(journal.vectors([KEYS[place] for place in known]), VECTORS[known])
        journal.append(KEYS, VECTORS)
    with opened(path) as journal:
        assert np.array_equal(journal.vectors(KEYS), VECTORS)
