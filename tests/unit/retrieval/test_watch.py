"""An index that follows its folders: when it looks, what it finds, and what it keeps."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.retrieval import loaders, watch
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.documents import Document
from tandem.retrieval.folders import Found
from tandem.retrieval.index import Index
from tandem.retrieval.watch import (
    Follower,
    Pace,
)
from tests.unit.retrieval.helpers import edit

NOW_NS = 10**20
"""Long after every change."""


def held(directory: Path) -> list[tuple[str, str, str]]:
    """Id, text and metadata of every chunk, sorted, and that every vector is that of its text."""
    with Index.open(directory) as index:
        return sorted((str(c.id), c.page_content, str(sorted(c.metadata.items()))) for c in index.chunks())


def fresh(directory: Path, roots: Path, new: Path, embedder) -> list[tuple[str, str, str]]:
    """What a first build of a folder holds."""
    with Index(directory) as index:
        key = bytes.fromhex(index.manifest.id_key)
    build_index(roots, new, embedder, id_key=key)
    return held(new)


@pytest.fixture
def index(corpus: Path, tmp_path: Path, embedder) -> Path:
    build_index(corpus, tmp_path / "index", embedder, id_key=b"key")
    return tmp_path / "index"


@pytest.fixture
def follower(index: Path, embedder) -> Follower:
    """One that has looked, at files that have settled."""
    following = Follower(index, embedder, {})
    following.look(NOW_NS)
    return following


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all looks."""
    monkeypatch.setattr(loaders.SHARED, "close", lambda: None)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that were read."""
    sources: list[str] = []
    original = watch.read_files

    def noted(files, *others):
        files = list(files)
        sources.extend(source for _, source in files)
        return original(files, *others)

    monkeypatch.setattr(watch, "read_files", noted)
    return sources


# ---- when ----------------------------------------------------------------------------------------------------


def test_the_first_look_is_due_at_once_and_the_next_one_after_a_while() -> None:
    pace = Pace(100.0, rescan_s=60)
    assert (pace.due_s, pace.is_rescan) == (100, False)
    pace.begin()
    pace.end(101.0)
    assert (pace.due_s, pace.is_rescan) == (161, True)


# ---- what ----------------------------------------------------------------------------------------------------


def test_only_what_changed_is_read(
    follower: Follower, corpus: Path, index: Path, read: list[str], embedder
) -> None:
    embedder.calls.clear()
    (corpus / "soup.txt").write_text("Leek soup.")
    (corpus / "deep" / "er").mkdir(parents=True)
    (corpus / "deep" / "er" / "tea.txt").write_text("Tea.")
    (corpus / "chess.txt").rename(corpus / "deep" / "chess.txt")
    report = follower.look(NOW_NS)
    assert report is not None
    assert sorted(read) == ["deep/chess.txt", "deep/er/tea.txt", "soup.txt"]
    assert sorted(text for call in embedder.calls for text in call) == ["Leek soup.", "Tea."]
    assert (report.num_added, report.num_replaced, report.num_deleted, report.num_chunks) == (2, 1, 1, 4)
    assert held(index) == fresh(index, corpus, index.with_name("fresh"), embedder)


def test_a_change_that_keeps_size_and_time_is_found(follower: Follower, corpus: Path, index: Path) -> None:
    path = corpus / "soup.txt"
    before = path.stat()
    path.write_text(path.read_text().replace("tomato", "potato"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    follower.look(NOW_NS)
    assert any("potato soup" in text for _, text, _ in held(index))


def test_a_file_that_just_changed_is_read_once_more(
    follower: Follower, corpus: Path, read: list[str]
) -> None:
    (corpus / "soup.txt").write_text("Leek soup.")
    changed_ns = (corpus / "soup.txt").stat().st_ctime_ns
    for since_ns in (0, watch.SETTLED_NS, watch.SETTLED_NS + 1, 2 * watch.SETTLED_NS):
        follower.look(changed_ns + since_ns)
    assert read == ["soup.txt"] * 3


def test_the_next_process_knows_what_was_seen(
    follower: Follower, corpus: Path, index: Path, read: list[str], embedder
) -> None:
    (corpus / "tea.txt").write_text("Tea.")
    (corpus / "soup.txt").unlink()
    Follower(index, embedder, {}).look(NOW_NS)
    assert read == ["tea.txt"]
    assert held(index) == fresh(index, corpus, index.with_name("fresh"), embedder)
    edit(index, "DELETE FROM watched")
    read.clear()
    assert Follower(index, embedder, {}).look(NOW_NS) is None
    assert len(read) == 3


def test_what_another_process_did_to_the_index_is_put_right(
    follower: Follower, corpus: Path, index: Path, embedder
) -> None:
    """A build that had read a file before it changed may write what it read after the change was indexed."""
    old = (corpus / "soup.txt").read_text()
    (corpus / "soup.txt").write_text("Leek soup.")
    follower.look(NOW_NS)
    update_index(index, embedder, delete=["chess.txt"])
    stale = [
        Document(page_content=old, metadata={"source": "soup.txt"}),
        Document(page_content="?", id="foreign"),
    ]
    update_index(index, embedder, add=stale)
    follower.look(NOW_NS)
    assert held(index) == fresh(index, corpus, index.with_name("fresh"), embedder)


def test_a_file_that_cannot_be_read_keeps_what_was_indexed_and_is_named_once(
    follower: Follower,
    corpus: Path,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = held(index)
    (corpus / "soup.txt").write_text("Leek soup.")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "tandem"):
        patch.setattr(loaders.SHARED, "read", refuse)
        patch.setattr(watch.os, "access", lambda path, mode: False)
        follower.look(NOW_NS)
        follower.look(NOW_NS)
    assert held(index) == before
    assert [record.getMessage() for record in caplog.records] == [
        "soup.txt was left out: it cannot be read (Permission denied); check its rights.",
        "soup.txt: what the index held of it stays, since it was read before.",
    ]
    follower.look(NOW_NS)
    assert any("Leek soup." in text for _, text, _ in held(index))


def test_a_folder_that_goes_and_comes_back_keeps_its_documents(
    follower: Follower, corpus: Path, index: Path, embedder, caplog: pytest.LogCaptureFixture
) -> None:
    before = held(index)
    corpus.rename(corpus.with_name("elsewhere"))
    with caplog.at_level(logging.INFO, "tandem"):
        assert follower.look(NOW_NS) is None
        corpus.mkdir()  # where a disk was
        assert follower.look(NOW_NS) is None
        assert Follower(index, embedder, {}).look(NOW_NS) is None
        corpus.rmdir()
        corpus.with_name("elsewhere").rename(corpus)
        (corpus / "tea.txt").write_text("Tea.")
        follower.look(NOW_NS)
    assert set(before) < set(held(index))
    assert held(index) == fresh(index, corpus, index.with_name("fresh"), embedder)
    said = [record.getMessage() for record in caplog.records if "holds no file" in record.getMessage()]
    assert len(said) == 2  # one for each process
    assert f"{corpus} is back." in caplog.text


def test_a_disk_within_a_folder(corpus: Path, index: Path, embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are on another device than the root; without it there is only the folder, on the root's."""
    (corpus / "disk").mkdir()
    (corpus / "disk" / "tea.txt").write_text("Tea.")
    original = watch.walk_path

    def on_a_disk(*arguments: Any) -> Iterator[tuple[Found, str]]:
        for file, source in original(*arguments):
            assert file.status is not None
            values = list(file.status)
            values[2] += file.listed[0] == "disk"
            times = {name: getattr(file.status, name) for name in ("st_mtime_ns", "st_ctime_ns")}
            yield file._replace(status=os.stat_result(values, times)), source

    with monkeypatch.context() as patch:
        patch.setattr(watch, "walk_path", on_a_disk)
        following = Follower(index, embedder, {})
        following.look(NOW_NS)
    (corpus / "disk" / "tea.txt").unlink()
    (corpus / "chess.txt").unlink()
    following.look(NOW_NS)
    texts = [text for _, text, _ in held(index)]
    assert "Tea." in texts
    assert not any("Chess" in text for text in texts)
