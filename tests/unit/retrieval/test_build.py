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


def test_a_failing_build_keeps_the_index(corpus: Path, tmp_path: Path, embedder) -> None:
    build_index(corpus, tmp_path / "index", embedder)
    with pytest.raises(RetrievalError, match="needs at least 64 chunks to train, but there are 3"):
        build_index(corpus, tmp_path / "new", embedder, factory="IVF64,Flat")
    with pytest.raises(RetrievalError, match="but 'nonsense' was asked for; use one like"):
        build_index(corpus, tmp_path / "index", embedder, factory="nonsense")
    with pytest.raises(RetrievalError, match="does not exist"):
        build_index(corpus / "nowhere", tmp_path / "index", embedder)
    assert len(Index.open(tmp_path / "index", embedder.fingerprint)) == 3
