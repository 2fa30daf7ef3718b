"""The whole way from files to an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

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


def test_the_id_key_of_an_index_is_kept(corpus: Path, tmp_path: Path, embedder) -> None:
    first = build_index(corpus, tmp_path / "index", embedder, id_key=b"secret")
    assert first.manifest.id_key == b"secret".hex()
    assert build_index(corpus, tmp_path / "index", embedder, id_key=b"other").is_unchanged
    plain = build_index(corpus, tmp_path / "plain", embedder)
    ids = [Index.open(tmp_path / name).document(0).id for name in ("index", "plain")]
    assert ids[0] != ids[1]
    assert plain.manifest.id_key == ""


def test_a_failing_build_keeps_the_index(corpus: Path, tmp_path: Path, embedder) -> None:
    build_index(corpus, tmp_path / "index", embedder)
    with pytest.raises(RetrievalError, match="needs at least 64 chunks to train, but there are 3"):
        build_index(corpus, tmp_path / "new", embedder, factory="IVF64,Flat")
    with pytest.raises(RetrievalError, match='does not take the index kind "nonsense"'):
        build_index(corpus, tmp_path / "index", embedder, factory="nonsense")
    with pytest.raises(RetrievalError, match="does not exist"):
        build_index(corpus / "nowhere", tmp_path / "index", embedder)
    assert len(Index.open(tmp_path / "index", embedder.fingerprint)) == 3


def test_bad_files_of_every_kind_are_named_and_the_rest_goes_on(
    corpus: Path, tmp_path: Path, embedder, make_pdf
) -> None:
    (corpus / "empty.pdf").write_bytes(make_pdf("", ""))
    (corpus / "plain.pdf").write_bytes(make_pdf("Readable words"))
    writer = PdfWriter(clone_from=PdfReader(corpus / "plain.pdf"))
    writer.encrypt(user_password="secret", owner_password="owner", algorithm="RC4-128")
    writer.write(corpus / "locked.pdf")
    (corpus / "wide.txt").write_bytes(b"a\0b")
    report = build_index(corpus, tmp_path / "index", embedder)
    assert (report.num_files, report.num_chunks) == (4, 4)
    assert report.problems == [
        "empty.pdf was left out: it holds no text; fill it or remove it.",
        "locked.pdf was left out: it is encrypted; save it without a password.",
        "wide.txt was left out: it is not text (a zero byte at offset 1); remove it or convert it.",
    ]


def test_a_long_id_key(corpus: Path, tmp_path: Path, embedder) -> None:
    with pytest.raises(RetrievalError) as caught:
        build_index(corpus, tmp_path / "index", embedder, id_key=b"k" * 65)
    assert str(caught.value) == "An id key has at most 64 bytes, but this one 65; shorten it."
