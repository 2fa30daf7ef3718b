"""A retriever whose index changes on disk: it opens it again."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

import pytest

from tandem.retrieval import retriever as following
from tandem.retrieval.build import build_index, update_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Hit, Retriever


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
