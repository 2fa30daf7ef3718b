"""The way from files to an index, what it remembers of where it came from, and that no build loses a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import RetrievalError
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever
from tandem.retrieval.store import read_manifest


def sources(directory: Path) -> list[str]:
    return sorted(str(chunk.metadata["source"]) for chunk in Index.open(directory).chunks())


def test_the_root_is_absolute(
    index: Path, corpus: Path, embedder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_manifest(index).roots == [str(corpus)]
    monkeypatch.chdir(tmp_path)
    assert build_index(Path("corpus"), index, embedder).is_unchanged
    (tmp_path / "link").symlink_to(corpus)
    assert build_index(tmp_path / "link", index, embedder).is_unchanged
    assert read_manifest(index).roots == [str(corpus)]


def test_a_report_counts_files_chunks_and_problems(corpus: Path, tmp_path: Path, embedder) -> None:
    (corpus / "bad.txt").write_bytes(b"a\0b")
    (corpus / "long.txt").write_text("word " * 100)
    report = build_index(corpus, tmp_path / "index", embedder, chunk_chars=200, overlap=0)
    assert (report.num_files, report.num_chunks, report.is_unchanged) == (4, 6, False)
    assert [problem[:20] for problem in report.problems] == ["bad.txt was left out"]
    assert report.manifest == Index.open(tmp_path / "index").manifest
    (hit,) = Retriever.open(tmp_path / "index", embedder).search("tomato soup", 1)
    assert hit.document.metadata == {"source": "soup.txt", "chunk": 0}


def test_a_file_of_the_folder_does_not_become_the_index(index: Path, corpus: Path, embedder) -> None:
    with pytest.raises(
        RetrievalError, match=r"was built from .*corpus, .*from .*soup\.txt would delete 2 documents; "
    ):
        build_index(corpus / "soup.txt", index, embedder)
    assert len(sources(index)) == 3
    assert build_index(corpus / "soup.txt", index, embedder, replace=True).num_deleted == 2
    assert read_manifest(index).roots == [str(corpus / "soup.txt")]


def test_a_folder_that_was_moved_is_the_new_root(index: Path, corpus: Path, embedder) -> None:
    moved = corpus.rename(corpus.with_name("moved"))
    assert build_index(moved, index, embedder).is_unchanged
    assert read_manifest(index).roots == [str(moved)]


def test_further_roots_are_brought_up_to_date(index: Path, corpus: Path, tmp_path: Path, embedder) -> None:
    further = tmp_path / "elsewhere" / "corpus"  # of the same name
    further.mkdir(parents=True)
    (further / "soup.txt").write_text("A cold soup.")
    report = update_index(index, embedder, add=further)
    assert (report.num_added, report.num_unchanged) == (1, 3)
    assert sources(index) == ["chess.txt", "corpus-2/soup.txt", "puzzle.md", "soup.txt"]
    (further / "tea.txt").write_text("Tea.")
    (corpus / "chess.txt").unlink()
    for source in (corpus, further, None):
        build_index(source, index, embedder)
        assert sources(index) == ["corpus-2/soup.txt", "corpus-2/tea.txt", "puzzle.md", "soup.txt"]
    assert read_manifest(index).roots == [str(corpus), str(further)]
    further.rename(further.with_name("gone"))
    with pytest.raises(RetrievalError, match=r"but .*elsewhere/corpus does not exist any more; .* --delete,"):
        build_index(corpus, index, embedder)
    update_index(index, embedder, delete=[str(further)])
    assert sources(index) == ["puzzle.md", "soup.txt"]
    assert read_manifest(index).roots == [str(corpus)]
