"""An index that Tandem 0.1 wrote (`index-0.1`, three chunks and a journal of two more texts) is converted whole."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import build as writer
from tandem.retrieval import store
from tandem.retrieval import store as tables
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index, read_manifest, verify_index
from tandem.retrieval.loaders import load_path
from tandem.retrieval.retriever import Retriever
from tandem.retrieval.store import NAME
from tests.unit.retrieval.helpers import make_index

TEXTS = [
    "Chess is an old board game for two players.",
    "The best rated puzzle game is Vantelu Cor.",
    "Tomatensuppe mit Basilikum: grün und rot.",
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(Path(__file__).with_name("index-0.1"), tmp_path / "index")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_it_is_converted_when_opened_and_nothing_is_lost(
    old: Path, embedder, caplog: pytest.LogCaptureFixture
) -> None:
    before = json.loads((old / "manifest.json").read_text())
    ids = [json.loads(line)["id"] for line in (old / "data-1" / "chunks.jsonl").read_text().splitlines()]
    with caplog.at_level(logging.WARNING, "tandem"):
        retriever = Retriever.open(old, embedder)
    assert caplog.messages == [
        f"The index {old} had the format of Tandem 0.1 and was converted; nothing was lost."
    ]
    index = retriever.index
    assert [chunk.page_content for chunk in index.chunks()] == TEXTS
    assert index.ids() == ids
    assert index.document(1).metadata == {"source": "puzzle.md", "page": 2.0, "chunk": 0}
    assert np.array_equal(index.vectors(np.arange(3)), embedder.embed(TEXTS))
    for field in ("embedder", "embedder_fingerprint", "dimension", "count", "factory", "id_key"):
        assert getattr(index.manifest, field) == before[field]
    assert [hit.id for hit in retriever.search("puzzle game", 1, filter={"page": 2})] == [ids[1]]
    retriever.close()
    assert names(old) == [".embedded", NAME, "vectors-1.faiss", "vectors-1.npy"]
    caplog.clear()
    assert len(Index.open(old)) == 3
    assert caplog.messages == []


def test_a_build_embeds_nothing_that_it_or_its_journal_holds(old: Path, embedder) -> None:
    texts = [TEXTS[0], "A walk in the hills.", "A walk by the sea.", "Something new."]
    documents = [Document(page_content=text) for text in texts]
    report = build_index(documents, old, embedder, factory="SQ8", replace=True)
    assert embedder.calls == [["Something new."]]
    assert (report.num_embedded, report.manifest.id_key) == (1, b"secret".hex())
    assert names(old) == [NAME, "vectors-2.faiss", "vectors-2.npy"]
    assert np.array_equal(Index.open(old).vectors(np.arange(4)), embedder.embed(texts))


def test_an_update_keeps_the_rest(old: Path, embedder) -> None:
    report = update_index(old, embedder, delete=["soup.txt"], factory="SQ8")
    assert (report.num_deleted, report.num_unchanged, report.num_embedded) == (1, 2, 0)


def test_it_is_recognised_without_being_converted(old: Path, tmp_path: Path) -> None:
    assert read_manifest(old).count == verify_index(old).count == 3
    assert "manifest.json" in names(old)
    (tmp_path / "text.txt").write_text("text")
    documents, problems, _ = load_path(tmp_path)
    assert ([document.page_content for document in documents], problems) == (["text"], [])


@pytest.mark.parametrize("name", ["chunks.jsonl", "vectors.faiss", "embeddings.npy"])
def test_a_damaged_one_is_refused_and_can_be_built_again(old: Path, embedder, name: str) -> None:
    path = old / "data-1" / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    for attempt in (Index.open, verify_index):
        with pytest.raises(RetrievalError) as caught:
            attempt(old)
        assert str(caught.value) == (
            f"The index {old} is damaged: {name} does not match its checksum; build it again with `tandem index`."
        )
    assert "manifest.json" in names(old)
    documents = [Document(page_content=text) for text in TEXTS]
    assert build_index(documents, old, embedder).manifest.id_key == b"secret".hex()
    assert names(old) == [NAME, "vectors-1.faiss"]


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100_000, "{}", "3"])
def test_a_manifest_that_cannot_be_read(old: Path, embedder, text: str) -> None:
    (old / "manifest.json").write_text(text, errors="surrogateescape")
    with pytest.raises(RetrievalError, match=r"is damaged: manifest.json (is not readable|lacks)"):
        Index.open(old)
    chunks = [Document(id=str(n), page_content=text, metadata={}) for n, text in enumerate(TEXTS)]
    assert len(make_index(old, chunks, embedder)) == 3


def test_a_conversion_that_fails_loses_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "write_chunks", full)
        with pytest.raises(RetrievalError) as caught:
            Index.open(old)
        assert str(caught.value).startswith(
            f"The index {old} has the format of Tandem 0.1 and could not be converted: The index"
        )
        assert "No space left on device" in str(caught.value)
    assert len(Index.open(old)) == 3


def test_a_conversion_that_is_under_way_elsewhere(old: Path) -> None:
    with (
        store.writing(old),
        pytest.raises(RetrievalError, match="could not be converted: One process at a time"),
    ):
        Index.open(old)


def test_a_conversion_that_was_killed_before_it_tidied_up(old: Path, embedder) -> None:
    """Both formats are there: today's counts, and the next build removes the other."""
    again = shutil.copytree(old, old.with_name("again"))
    Index.open(old).close()
    shutil.copytree(again, old, dirs_exist_ok=True)
    assert len(Index.open(old)) == 3
    assert update_index(old, embedder, factory="SQ8").is_unchanged
    assert names(old) == [NAME, "vectors-1.faiss", "vectors-1.npy"]
    assert writer.JOURNAL not in names(old)
