"""LangChain both ways, against its own in-memory vector store."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from tandem.config.schema import Config
from tandem.errors import RetrievalError
from tandem.plugins.clients import stores
from tandem.plugins.clients.stores import LangChainEmbedder, StoreRetriever, TandemEmbeddings, TandemRetriever
from tandem.retrieval.build import build_index
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import load_embedder
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever, open_retriever
from tandem.topology import Party
from tests.unit.retrieval.helpers import refused


class Letters(Embeddings):
    """Counts letters; queries get a vector a little apart, and nothing has unit length."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "abcdefgh"] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [value + 0.5 for value in self.embed_documents([text])[0]]


DOCUMENTS = [
    Document(id="mira's diary", page_content="a bad cab", metadata={"source": "diary.txt"}),
    Document(id="2", page_content="egg head feed", metadata={"source": "b.txt"}),
    Document(id="3", page_content="a big bag", metadata={"source": "c.txt"}),
]


@pytest.fixture
def store() -> InMemoryVectorStore:
    store = InMemoryVectorStore(Letters())
    store.add_documents(DOCUMENTS)
    return store


@pytest.fixture
def found(store: InMemoryVectorStore, embedder) -> StoreRetriever:
    return StoreRetriever(store, embedder, b"key")


def test_langchains_embeddings_in_an_index_and_langchains_documents_in_and_out(tmp_path: Path) -> None:
    embedder = LangChainEmbedder(Letters(), "letters")
    report = build_index(DOCUMENTS, tmp_path / "i", embedder)
    assert (report.num_chunks, report.manifest.embedder) == (3, "letters")
    np.testing.assert_allclose(
        np.linalg.norm(Index.open(tmp_path / "i").vectors(np.arange(3)), axis=1), 1, rtol=1e-6
    )
    hits = Retriever.open(tmp_path / "i", embedder).search("egg head", 1)
    assert hits[0].document.page_content == "egg head feed"
    assert hits[0].document.metadata == {"source": "b.txt", "chunk": 0}
    with pytest.raises(RetrievalError, match="must be searched with the embedder that built it"):
        Retriever.open(tmp_path / "i", LangChainEmbedder(Letters(), "other letters"))


@pytest.mark.parametrize("method", ["embed_query", "embed_documents"])
def test_embeddings_that_fail(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no answer from the model\nsome more.")

    embedder = LangChainEmbedder(Letters(), "letters")
    monkeypatch.setattr(Letters, method, fail)
    with refused("The embedder letters failed (no answer from the model); fix it, then try again."):
        embedder.embed(["a"], is_query=method == "embed_query")
    if method == "embed_query":
        with pytest.raises(RetrievalError, match="The embedder letters failed"):
            LangChainEmbedder(Letters(), "letters")


def test_tandems_embedder_and_index_in_langchain(directory: Path, embedder) -> None:
    store = InMemoryVectorStore(TandemEmbeddings(embedder))
    store.add_documents(DOCUMENTS)
    assert store.similarity_search("egg head", 1)[0].id == "2"
    source = Retriever.open(directory, embedder)
    documents = TandemRetriever(source=source, k=2).invoke("the best rated puzzle game")
    assert [document.metadata["source"] for document in documents] == ["puzzle.md", "chess.txt"]
    assert documents == [hit.document for hit in source.search("the best rated puzzle game", 2)]
    only = TandemRetriever(source=source, filter={"source": "soup.txt"}).invoke("game")
    assert [document.metadata["source"] for document in only] == ["soup.txt"]


def test_a_store_finds_and_tandems_embedder_weighs(found: StoreRetriever, embedder) -> None:
    hits = found.search("a big egg", 3)
    query = embedder.embed(["a big egg"])[0].astype(float)
    for hit in hits:
        expected = embedder.embed([hit.document.page_content])[0].astype(float) @ query
        assert hit.score == pytest.approx(expected, abs=1e-6)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    ids = [hit.id for hit in hits]
    assert found.relevance(ids, "a big egg") == [hit.score for hit in hits]
    assert found.relevance(ids[::-1], "bag") == found.relevance(ids, "bag")[::-1]
    assert found.relevance([], "bag") == []


def test_what_crosses_to_the_other_party_says_nothing(found: StoreRetriever, store, embedder) -> None:
    hits = found.search("a bad cab", 3)
    assert all(len(hit.id) == 20 and "diary" not in hit.id for hit in hits)
    assert [hit.id for hit in found.search("a bad cab", 3)] == [hit.id for hit in hits]
    assert {hit.id for hit in hits}.isdisjoint(
        hit.id for hit in StoreRetriever(store, embedder, b"other").search("a bad cab", 3)
    )


def test_a_store_that_fails(found: StoreRetriever, store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **named: object) -> None:
        raise ConnectionError("no route\nto the database")

    monkeypatch.setattr(InMemoryVectorStore, "similarity_search", fail)
    with refused("The vector store InMemoryVectorStore failed with ConnectionError; fix it, then ask again."):
        found.search("egg", 1)
    with pytest.raises(RetrievalError, match="The query is empty"):
        found.search(" ", 1)
    with pytest.raises(RetrievalError, match="k is 0"):
        found.search("egg", 0)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, store: VectorStore) -> None:
    made = ModuleType("shelf")
    made.store, made.letters, made.number = lambda: store, Letters, lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shelf", made)


@pytest.mark.usefixtures("module")
def test_a_store_and_an_embedder_from_the_settings(embedder) -> None:
    config = Config.load(None, ["device.index=langchain:shelf:store"])
    assert config.device.index == "langchain:shelf:store"
    opened = open_retriever(Party.DEVICE, config, embedder)
    assert [hit.document.id for hit in opened.search("egg head", 1)] == ["2"]
    assert (opened.num_documents, opened.kind) == (None, "LangChain InMemoryVectorStore")
    letters = load_embedder("langchain:shelf:letters")
    assert (letters.name, letters.dimension) == ("langchain:shelf:letters", 8)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("shelf:none", "module 'shelf' has no attribute 'none'"),
        ("nowhere:store", "No module named 'nowhere'"),
        ("", "Empty module name"),
    ],
)
def test_what_cannot_be_opened(embedder, where: str, reason: str) -> None:
    for opened in (lambda: stores.open_retriever(where, embedder, None), lambda: stores.open_embedder(where)):
        with refused(
            f"langchain:{where} cannot be opened ({reason}); write langchain:MODULE:FUNCTION, whose module can "
            "be imported on that side's node."
        ):
            opened()


def test_half_a_surrogate_pair_in_a_store_reaches_neither_embedder_nor_message(embedder) -> None:
    class Broken(InMemoryVectorStore):
        def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
            return [Document(id="1", page_content="half \ud83d pair", metadata={"a": "b"})]

    (hit,) = StoreRetriever(Broken(Letters()), embedder, b"").search("half", 1)
    assert (hit.document.page_content, hit.document.id, hit.document.metadata) == (
        "half ? pair",
        "1",
        {"a": "b"},
    )
    assert ["half ? pair"] in embedder.calls
