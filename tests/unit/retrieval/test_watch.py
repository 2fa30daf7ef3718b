"""An index that follows its folders: when it looks, what it finds, and what it keeps."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import RetrievalError
from tandem.plugins.watching import follower as watch
from tandem.plugins.watching.follower import Follower
from tandem.retrieval import loaders
from tandem.retrieval import retriever as following
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.documents import Document
from tandem.retrieval.folders import RootFile
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Hit, Retriever
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
def follower(index: Path, embedder) -> Follower:
    """One that has looked, at files that have settled."""
    following = Follower(index, embedder, {})
    following.look(NOW_NS)
    return following


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


def test_the_latest_files_are_read_first_and_one_at_least() -> None:
    size = float(watch.AT_ONCE_BYTES)
    stale = {"old": [0, 1, 1, 0], "new": [0, 9, 9, 0], "middle": [0, 5, 5, 0]}
    assert watch.latest(stale, {"old": size, "new": 10.0, "middle": size}) == ["new", "middle"]
    assert watch.latest(stale, {"old": 1.0, "new": 10 * size, "middle": 1.0}) == ["new"]


def test_nothing_is_read_or_written_where_nothing_changed(
    follower: Follower, index: Path, read: list[str]
) -> None:
    before = sorted(path.stat().st_mtime_ns for path in index.iterdir())
    assert follower.look(NOW_NS) is None
    assert read == []
    assert sorted(path.stat().st_mtime_ns for path in index.iterdir()) == before


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


def test_other_settings_read_all_again(follower: Follower, index: Path, read: list[str], embedder) -> None:
    Follower(index, embedder, {"chunk_chars": 20, "overlap": 5}).look(NOW_NS)
    assert len(read) == 3
    assert max(len(text) for _, text, rest in held(index) if ".txt" in rest) <= 20


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

    def on_a_disk(*arguments: Any) -> Iterator[tuple[RootFile, str]]:
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


def test_several_roots_and_a_single_file(corpus: Path, index: Path, tmp_path: Path, embedder) -> None:
    more, single = tmp_path / "more", tmp_path / "single.txt"
    more.mkdir()
    (more / "tea.txt").write_text("Tea.")
    single.write_text("One.")
    update_index(index, embedder, add=more)
    update_index(index, embedder, add=single)
    following = Follower(index, embedder, {})
    following.look(NOW_NS)
    (more / "tea.txt").write_text("Green tea.")
    single.write_text("Two.")
    (corpus / "soup.txt").unlink()
    following.look(NOW_NS)
    assert {text for _, text, _ in held(index)} >= {"Green tea.", "Two."}
    before = held(index)
    assert build_index(None, index, embedder).num_unchanged == len(before)
    assert held(index) == before


def test_links_and_strange_names(follower: Follower, corpus: Path, index: Path, embedder) -> None:
    (corpus / "in.txt").symlink_to(corpus / "soup.txt")
    with open(os.path.join(os.fsencode(corpus), b"\xff.txt"), "w") as file:
        file.write("Not UTF-8.")
    follower.look(NOW_NS)
    (corpus / "soup.txt").write_text("Leek soup.")
    Follower(index, embedder, {}).look(NOW_NS)
    texts = [text for _, text, _ in held(index)]
    assert texts.count("Leek soup.") == 2
    assert "Not UTF-8." in texts
    assert held(index) == fresh(index, corpus, index.with_name("fresh"), embedder)


def test_many_new_files_are_read_a_part_at_a_time(
    follower: Follower, corpus: Path, index: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AT_ONCE_BYTES", 50)
    for number in range(10):
        (corpus / f"{number}.txt").write_text(f"number {number} " + "word " * 4)
    sizes = []
    while True:
        follower.look(NOW_NS)
        sizes.append(len(held(index)))
        if not follower.is_behind:
            break
    assert sizes == sorted(set(sizes))
    assert len(sizes) > 3
    assert held(index) == fresh(index, corpus, index.with_name("fresh"), embedder)


def test_no_index_and_no_files_to_follow(tmp_path: Path, embedder) -> None:
    with pytest.raises(RetrievalError, match="build it with `tandem index`"):
        Follower(tmp_path, embedder, {})
    build_index([Document(page_content="Given.")], tmp_path / "given", embedder)
    with pytest.raises(RetrievalError, match="from documents given in Python; build it again from a file"):
        Follower(tmp_path / "given", embedder, {})


@pytest.fixture
def retriever(index: Path, embedder) -> Retriever:
    return Retriever.open(index, embedder)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, retriever: Retriever) -> list[Path]:
    """Indexes that were opened since the retriever was made."""
    folders: list[Path] = []

    class Counted(Index):
        @classmethod
        def open(cls, directory: Path, *values: object, **options: object) -> Index:
            folders.append(directory)
            return Index.open(directory, *values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(following, "Index", Counted)
    return folders


def sources(hits: list[Hit]) -> set[str]:
    return {hit.document.metadata["source"] for hit in hits}


def test_a_changed_index_is_opened_again(
    retriever: Retriever, corpus: Path, index: Path, embedder, opened: list[Path]
) -> None:
    retriever.search("tomato soup", 3)
    (corpus / "soup.txt").write_text("A recipe for leek soup.")
    (corpus / "tea.txt").write_text("Tea.")
    build_index(corpus, index, embedder)
    after = retriever.search("leek soup", 4)
    assert after[0].document.page_content == "A recipe for leek soup."
    assert sources(after) == {"chess.txt", "puzzle.md", "soup.txt", "tea.txt"}
    assert (retriever.num_documents, len(opened)) == (4, 1)
    update_index(index, embedder, delete=["tea.txt"])
    assert sources(retriever.search("leek soup", 4)) == {"chess.txt", "puzzle.md", "soup.txt"}


def test_an_index_that_is_gone_or_of_another_embedder_is_kept_with_one_warning(
    retriever: Retriever, corpus: Path, index: Path, other_embedder, caplog: pytest.LogCaptureFixture
) -> None:
    before = sources(retriever.search("soup", 3))
    build_index(corpus, index, other_embedder)
    with caplog.at_level(logging.WARNING, "tandem"):
        for _ in range(3):
            assert sources(retriever.search("soup", 3)) == before
    assert len(caplog.records) == 1
    assert (
        "cannot be opened again, so searches use it as it was: An index must be searched with" in caplog.text
    )
    shutil.rmtree(index)
    with caplog.at_level(logging.WARNING, "tandem"):
        for _ in range(3):
            assert sources(retriever.search("soup", 3)) == before
    assert len(caplog.records) == 2


def test_searches_during_builds_each_see_one_index(tmp_path: Path, embedder) -> None:
    """Documents of the generations differ in their texts; what one search finds is of one generation."""
    directory = tmp_path / "index"

    def build(generation: int) -> None:
        texts = [Document(page_content=f"owl {number} of {generation}") for number in range(20)]
        build_index(texts, directory, embedder)

    build(0)
    retriever = Retriever.open(directory, embedder)
    seen: set[str] = set()
    failures: list[object] = []
    ended = threading.Event()

    def search() -> None:
        while not ended.is_set():
            hits = retriever.search("owl", 20)
            found = {hit.document.page_content.rpartition(" ")[2] for hit in hits}
            seen.update(found)
            if len(found) != 1 or len(hits) != 20:
                failures.append((found, len(hits)))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for generation in range(1, 9):
        build(generation)
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(seen) > 1, "the index changed while it was searched"
    assert {hit.document.page_content.rpartition(" ")[2] for hit in retriever.search("owl", 9)} == {"8"}
