"""Builds that fail, are killed, meet readers or each other, and the vectors that an unfinished one has kept."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import store
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME, IndexBusyError, Manifest, vector_key, writing
from tests.unit.retrieval.helpers import edit, make_index, names, num_vectors, refused


def test_a_rebuild_replaces_and_tidies_up(directory: Path, chunks: list[Document], embedder) -> None:
    before = Index.open(directory)
    make_index(directory, chunks[:2], embedder).close()
    assert len(Index.open(directory)) == 2
    assert before.document(2) == chunks[2]  # one that is open stays whole
    assert before.rows([str(chunks[2].id)]).tolist() == [2]
    before.close()
    assert names(directory) == [NAME]


@pytest.mark.parametrize("kind", ["Flat", "IVF2,Flat"])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_reader_that_comes_while_the_index_is_replaced(
    directory: Path,
    chunks: list[Document],
    embedder,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
    kind: str,
) -> None:
    """Before its checksums are compared, or after: it reads what was there when it came."""
    make_index(directory, chunks, embedder, kind).close()
    verify, is_first = store.Snapshot.verify, iter([True])

    def interrupted(self: store.Snapshot) -> None:
        if not is_late:
            verify(self)
        if next(is_first, False):
            make_index(directory, chunks[:2], embedder, kind).close()
        if is_late:
            verify(self)

    monkeypatch.setattr(store.Snapshot, "verify", interrupted)
    with Index.open(directory) as index:
        assert list(index.chunks()) == chunks
        texts = [chunk.page_content for chunk in chunks]
        assert np.array_equal(index.vectors(np.arange(3)), embedder.embed(texts))
    assert len(Index.open(directory)) == 2


class Stop(BaseException):
    """Ends a build as Ctrl-C or the death of the process would."""


@pytest.mark.parametrize("error", [Stop, OSError])
@pytest.mark.parametrize(
    "target",
    [
        "tandem.retrieval.store.Writer.lacks_vector",
        "tandem.retrieval.store.Writer.keep_vectors",
        "tandem.retrieval.store.Writer.write_chunks",
        "tandem.retrieval.store.Writer._write_facts",
        "tandem.retrieval.words.add_words",
        "tandem.retrieval.store.Writer.drop_unused_vectors",
        "tandem.retrieval.build.stored_vectors",
        "tandem.retrieval.build.VectorIndex.write",
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
            make_index(directory, other, embedder, "IVF1,Flat")
    sentence = str(caught.value)
    del caught  # its frames hold an open index
    if error is OSError:
        assert sentence == (
            f"The index {directory} could not be written (No space left on device); what it held before is kept: "
            "free space or check its rights, then build again."
        )
    assert list(Index.open(directory).chunks()) == chunks
    embedder.calls.clear()
    index = make_index(directory, other, embedder, "IVF1,Flat")
    assert len(index) == 1
    assert bool(embedder.calls) == target.endswith(("lacks_vector", "keep_vectors")), (
        "what is kept is embedded once"
    )
    index.close()
    assert names(directory) == [NAME, index.manifest.trained]


@pytest.mark.parametrize("num_pages", [1, 60])
def test_a_disk_that_takes_no_more(
    directory: Path, chunks: list[Document], embedder, monkeypatch: pytest.MonkeyPatch, num_pages: int
) -> None:
    """At once, or after some vectors, which are kept."""
    monkeypatch.setattr("tandem.retrieval.build.EMBED_AT_ONCE", 100)
    connect = store.connect

    def connect_to_small(*arguments: Any) -> Any:
        database = connect(*arguments)
        database.execute(f"PRAGMA max_page_count = {num_pages}")
        return database

    many = [Document(id=f"{n}", page_content=f"text {n}", metadata={}) for n in range(1000)]
    with monkeypatch.context() as patch:
        patch.setattr(store, "connect", connect_to_small)
        with pytest.raises(RetrievalError) as caught:
            make_index(directory, many, embedder)
    assert str(caught.value) == (
        f"The index {directory} could not be written (database or disk is full); what it held before is kept: "
        "free space or check its rights, then build again."
    )
    assert list(Index.open(directory).chunks()) == chunks
    assert (num_vectors(directory) > 3) == (num_pages > 1)


def test_a_second_builder_in_another_process_is_refused(
    directory: Path, chunks: list[Document], embedder
) -> None:
    script = (
        "import sys, pathlib; from tandem.retrieval.store import read_manifest, writing\n"
        "directory = pathlib.Path(sys.argv[1])\n"
        "with writing(directory, read_manifest(directory)):\n"
        "    print('writing', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        with refused(
            f"One process at a time may build an index, and another is building {directory}; wait for it."
        ):
            make_index(directory, chunks[:1], embedder)
        assert len(Index.open(directory)) == 3
        other.kill()
    assert len(make_index(directory, chunks[:1], embedder)) == 1


def test_an_index_that_another_process_built_meanwhile_is_not_replaced(
    tmp_path: Path, chunks: list[Document], embedder
) -> None:
    manifest = make_index(tmp_path, chunks, embedder).manifest
    for read in (None, replace(manifest, digest="another")):
        with (
            pytest.raises(IndexBusyError, match="was changed by another process meanwhile"),
            writing(tmp_path, read),
        ):
            pass
    assert len(Index.open(tmp_path)) == 3


def test_foreign_folders_are_not_overwritten(tmp_path: Path, chunks: list[Document], embedder) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    (tmp_path / "file").write_text("")
    for place, what in (
        (tmp_path, "holds a manifest.json, which no index of this version has"),
        (tmp_path / "file", "is a file"),
    ):
        with refused(f"An index needs a folder of its own, but {place} {what}; choose another folder."):
            make_index(place, chunks, embedder)


# ---- Vectors of a build that did not end: what was kept is there, and nothing that was not --------------------


VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)
KEYS = [text.encode() for text in ("one", "two", "three")]


def lacking(directory: Path) -> list[bool]:
    with writing(directory, None) as writer:
        return [writer.lacks_vector(key) for key in KEYS]


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    with writing(tmp_path / "i", None) as writer:
        writer.keep_vectors(KEYS[:2], VECTORS[:2])
    with writing(tmp_path / "i", None) as writer:
        writer.keep_vectors(KEYS[2:], VECTORS[2:])
    return tmp_path / "i"


def test_what_was_kept_is_there_and_no_index_yet(unfinished: Path) -> None:
    with pytest.raises(RetrievalError, match="has none"):
        Index.open(unfinished)
    assert lacking(unfinished) == [False] * 3
    with writing(unfinished, None) as writer:
        assert writer.lacks_vector(b"four")
    assert (unfinished / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("column", ["key", "vector"])
def test_a_vector_that_does_not_fit_its_checksum_is_lacking_and_can_be_written_again(
    unfinished: Path, column: str
) -> None:
    edit(unfinished, f"UPDATE vectors SET {column} = CAST({column} || 'x' AS BLOB) WHERE number = 1")
    assert lacking(unfinished) == [True, False, False]
    with writing(unfinished, None) as writer:
        writer.keep_vectors(KEYS[:1], VECTORS[:1])
    assert lacking(unfinished) == [False] * 3


@pytest.mark.parametrize("cut", [1, 1000, 4096, 8000])
def test_a_file_that_was_cut_off_is_written_again(
    unfinished: Path, cut: int, chunks: list[Document], embedder
) -> None:
    path = unfinished / NAME
    path.write_bytes(path.read_bytes()[:-cut])
    lacking(unfinished)
    with writing(unfinished, None) as writer:
        writer.keep_vectors(KEYS, VECTORS)
    assert lacking(unfinished) == [False] * 3
    assert len(make_index(unfinished, chunks, embedder)) == 3


def test_a_vector_belongs_to_one_text_and_one_embedder(directory: Path) -> None:
    with Index.open(directory) as index:
        manifest: Manifest = index.manifest
    others = [replace(manifest, embedder_fingerprint="f"), replace(manifest, dimension=8)]
    keys = {vector_key(each, text) for each in (manifest, *others) for text in ("a", "b", "")}
    assert len(keys) == 9


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 500])
def test_any_bytes_can_be_there(tmp_path: Path, data: bytes, chunks: list[Document], embedder) -> None:
    (tmp_path / NAME).write_bytes(data)
    assert len(make_index(tmp_path, chunks, embedder)) == 3


TRIALS = Path(__file__).with_name("kill_trials.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRIALS), *arguments]
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )


def test_killed_builds_and_updates_lose_nothing() -> None:
    ended = run("--trials", "8")
    assert ended.returncode == 0, ended.stderr
    assert "'embedding'" in ended.stdout


def test_a_build_that_commits_in_two_steps_is_found() -> None:
    """The chance that none of 40 kills strikes the gap, more than a quarter of the choices, is below 1e-5."""
    ended = run("--trials", "40", "--what", "update", "--mutant")
    assert ended.returncode == 1
    assert "is damaged" in ended.stderr
