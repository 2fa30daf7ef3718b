"""Folders of good, bad and foreign files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import loaders
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import Loaded, ReaderProcess, load_path


def test_a_folder_is_read_in_a_fixed_order_with_relative_sources(corpus: Path) -> None:
    (corpus / "sub").mkdir()
    (corpus / "sub" / "B.TXT").write_text("deep")
    (corpus / ".hidden.txt").write_text("secret")
    loaded = load_path(corpus)
    sources = [document.metadata["source"] for document in loaded.documents]
    assert sources == ["chess.txt", "puzzle.md", "soup.txt", "sub/B.TXT"]
    assert loaded.problems == []


def test_a_single_file(corpus: Path) -> None:
    documents, problems, _ = load_path(str(corpus / "chess.txt"))
    assert [document.metadata["source"] for document in documents] == ["chess.txt"]
    assert problems == []


def test_bad_files_among_good_ones_are_named_and_the_rest_goes_on(corpus: Path) -> None:
    (corpus / "latin.txt").write_bytes(b"gr\xfcn")
    (corpus / "lines.jsonl").write_text('{"text": "good"}\n{"text": 3}\n')
    (corpus / "one.png").write_bytes(b"")
    (corpus / "two.png").write_bytes(b"")
    (corpus / "README").write_text("no ending")
    loaded = load_path(corpus)
    assert len(loaded.documents) == 4
    only = "only txt, md, html, pdf and jsonl are read; convert what matters to one of these."
    assert loaded.problems == [
        "latin.txt was left out: it is not UTF-8 text (byte 0xfc at offset 2); save it as UTF-8.",
        'lines.jsonl line 2 was left out: it has no "text" with a non-empty string; add one.',
        f"1 file without an ending was left out: {only}",
        f"2 files ending in .png were left out: {only}",
    ]


def test_a_file_that_cannot_be_read(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Denied(ReaderProcess):
        def read(self, path: Path, source: str) -> tuple[list[Document], list[str]]:
            if path.name == "chess.txt":
                raise PermissionError(13, "Permission denied")
            return reader.read(path, source)

    reader = loaders.SHARED
    monkeypatch.setattr(loaders, "SHARED", Denied())
    loaded = load_path(corpus)
    assert len(loaded.documents) == 2
    assert loaded.problems == [
        "chess.txt was left out: it cannot be read (Permission denied); check its rights."
    ]


def test_a_broken_link(corpus: Path) -> None:
    (corpus / "gone.txt").symlink_to(corpus / "nowhere.txt")
    assert load_path(corpus).problems == [
        "gone.txt was left out: it cannot be read (No such file or directory); check its rights."
    ]


def test_an_index_inside_the_corpus_is_not_read(corpus: Path, embedder) -> None:
    build_index(corpus, corpus / "index", embedder)
    assert len(load_path(corpus).documents) == 3


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError) as caught:
        load_path(tmp_path / "nowhere")
    assert str(caught.value) == (
        f"A corpus must be a file or a folder, but {tmp_path}/nowhere does not exist; check its path."
    )


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError) as caught:
        load_path(tmp_path)
    assert str(caught.value) == (
        "A corpus must hold at least one file of txt, md, html, pdf and jsonl, "
        f"but {tmp_path} holds none; add one."
    )


def test_a_folder_without_a_readable_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(RetrievalError) as caught:
        load_path(tmp_path)
    assert str(caught.value) == (
        f"A corpus must hold at least one readable file of txt, md, html, pdf and jsonl, but {tmp_path} "
        "has none "
        "(a.txt was left out: it is not UTF-8 text (byte 0xff at offset 0); save it as UTF-8; 1 more "
        "problem)."
    )


def test_file_names_that_are_not_utf8(corpus: Path, tmp_path: Path, embedder) -> None:
    """Equal texts under such names are two chunks, and a change replaces the right one."""
    root = os.fsencode(corpus)
    for name in (b"\xff.txt", b"\xfe.txt"):
        (Path(os.fsdecode(root + b"/" + name))).write_text("Equal text.")
    (Path(os.fsdecode(root + b"/\xff.p\xffg"))).write_text("Left out.")
    directory = tmp_path / "index"
    report = build_index(corpus, directory, embedder)
    assert report.problems == [
        "1 file ending in .p\\xffg was left out: only txt, md, html, pdf and jsonl are read; "
        "convert what matters to one of these."
    ]
    assert sorted(str(chunk.metadata["source"]) for chunk in Index.open(directory).chunks()) == [
        "\\xfe.txt",
        "\\xff.txt",
        "chess.txt",
        "puzzle.md",
        "soup.txt",
    ]
    assert len(set(Index.open(directory).ids())) == 5
    Path(os.fsdecode(root + b"/\xff.txt")).write_text("Changed text.")
    report = update_index(directory, embedder, add=corpus)
    assert (report.num_replaced, report.num_unchanged, report.num_chunks) == (1, 4, 5)
    assert update_index(directory, embedder, delete=["\\xff.txt"]).num_deleted == 1


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.html", "link.md"])
def test_a_pipe_blocks_nothing(corpus: Path, name: str) -> None:
    os.mkfifo(corpus / "pipe.txt" if name == "link.md" else corpus / name)
    if name == "link.md":
        (corpus / name).symlink_to(corpus / "pipe.txt")
    read: list[Loaded] = []
    reader = threading.Thread(target=lambda: read.append(load_path(corpus)), daemon=True)
    reader.start()
    reader.join(10)
    assert read, "the build hangs"
    assert len(read[0].documents) == 3
    assert f"{name} was left out: it is a pipe, socket or device, not a file; remove it." in read[0].problems


def test_links_that_lead_out_of_the_folder_are_not_followed(corpus: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("a.txt", "b.txt"):
        (outside / name).write_text("private")
    (corpus / "folder").symlink_to(outside)
    (corpus / "a.txt").symlink_to(outside / "a.txt")
    (corpus / "b.txt").symlink_to("../outside/../outside/b.txt")
    (corpus / "gone.txt").symlink_to(outside / "gone.txt")
    (corpus / "loop.txt").symlink_to("loop.txt")
    (corpus / ".hidden.txt").symlink_to(outside / "a.txt")
    (corpus / "again.txt").symlink_to("soup.txt")
    documents, problems, _ = load_path(corpus)
    sources = [document.metadata["source"] for document in documents]
    assert sources == ["again.txt", "chess.txt", "puzzle.md", "soup.txt"]
    assert problems == [
        "loop.txt was left out: it cannot be read (Too many levels of symbolic links); check its rights.",
        "4 links that lead out of the folder were not followed (folder, a.txt, b.txt, ...); "
        "copy what should be indexed.",
    ]


def test_a_link_that_is_given_itself_is_followed(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").symlink_to(corpus)
    assert len(load_path(tmp_path / "notes").documents) == 3
    (tmp_path / "note.txt").symlink_to(corpus / "soup.txt")
    assert [document.metadata["source"] for document in load_path(tmp_path / "note.txt").documents] == [
        "note.txt"
    ]
