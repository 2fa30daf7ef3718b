"""The whole way from files to an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import RetrievalError
from tandem.retrieval.build import build_index
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever


def test_a_report_counts_files_chunks_and_problems(corpus: Path, tmp_path: Path, embedder) -> None:
    (corpus / "bad.txt").write_bytes(b"a\0b")
    (corpus / "long.txt").write_text("word " * 100)
    report = build_index(corpus, tmp_path / "index", embedder, chunk_chars=200, overlap=0)
    assert (report.num_files, report.num_chunks, report.is_unchanged) == (4, 6, False)
    assert [problem[:20] for problem in report.problems] == ["bad.txt was left out"]
    assert report.manifest == Index.open(tmp_path / "index").manifest
    assert Retriever.open(tmp_path / "index", embedder).search("tomato soup", 1)[0].document.metadata == {
        "source": "soup.txt",
        "chunk": 0,
    }


def test_an_unchanged_corpus_is_not_embedded_again(corpus: Path, tmp_path: Path, embedder) -> None:
    first = build_index(corpus, tmp_path / "index", embedder)
    embedder.calls.clear()
    again = build_index(corpus, tmp_path / "index", embedder)
    assert again.is_unchanged
    assert again.manifest == first.manifest
    assert embedder.calls == []


def test_whatever_differs_is_built_anew(corpus: Path, tmp_path: Path, embedder, other_embedder) -> None:
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder)
    assert not build_index(corpus, directory, embedder, factory="HNSW8").is_unchanged
    assert not build_index(corpus, directory, other_embedder, factory="HNSW8").is_unchanged
    assert not build_index(corpus, directory, embedder).is_unchanged
    (corpus / "soup.txt").write_text("A recipe for leek soup.")
    assert not build_index(corpus, directory, embedder).is_unchanged
    (directory / "vectors-5.faiss").write_bytes(b"")
    assert not build_index(corpus, directory, embedder).is_unchanged
    assert build_index(corpus, directory, embedder).is_unchanged


def test_a_failing_build_keeps_the_index(corpus: Path, tmp_path: Path, embedder) -> None:
    build_index(corpus, tmp_path / "index", embedder)
    with pytest.raises(RetrievalError, match="needs at least 64 chunks to train, but there are 3"):
        build_index(corpus, tmp_path / "new", embedder, factory="IVF64,Flat")
    with pytest.raises(RetrievalError, match='does not take the index kind "nonsense"'):
        build_index(corpus, tmp_path / "index", embedder, factory="nonsense")
    with pytest.raises(RetrievalError, match="does not exist"):
        build_index(corpus / "nowhere", tmp_path / "index", embedder)
    assert len(Index.open(tmp_path / "index", embedder.fingerprint)) == 3
