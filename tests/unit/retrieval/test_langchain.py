"""LangChain both ways, against its own in-memory vector store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
from tandem.retrieval.factory import load_embedder, open_retriever
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever
from tandem.topology import Party


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


def test_queries_and_documents_are_embedded_by_their_own_methods() -> None:
    embedder = LangChainEmbedder(Letters(), "letters")
    query, document = embedder.embed(["abc"], is_query=True)[0], embedder.embed(["abc"])[0]
    np.testing.assert_allclose(document[:4], [3**-0.5] * 3 + [0], rtol=1e-6)
    assert query[3] > 0
    assert embedder.embed([]).shape == (0, 8)
    assert not embedder.embed(["xyz"]).any()


def test_embeddings_of_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = LangChainEmbedder(Letters(), "letters")
    monkeypatch.setattr(Letters, "embed_documents", lambda self, texts: [[1.0]] * len(texts))
    with pytest.raises(RetrievalError) as caught:
        embedder.embed(["a"])
    assert str(caught.value) == (
        "The embedder letters must give 1 vectors of length 8, but it gave the shape (1, 1); "
        "use a model with one length."
    )


@pytest.mark.parametrize("method", ["embed_query", "embed_documents"])
def test_embeddings_that_fail(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def refused(*_: object) -> None:
        raise ConnectionError("no answer from the model\nsome more.")

    embedder = LangChainEmbedder(Letters(), "letters")
    monkeypatch.setattr(Letters, method, refused)
    with pytest.raises(RetrievalError) as caught:
        embedder.embed(["a"], is_query=method == "embed_query")
    assert str(caught.value) == (
        "The embedder letters failed (no answer from the model); fix it, then try again."
    )
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


def test_nothing_is_embedded_in_vain(store, embedder) -> None:
    class Lengths:
        name = "lengths"

        def scores(self, text: str, documents: Sequence[str]) -> list[float]:
            return [float(len(document)) for document in documents]

    retriever = StoreRetriever(store, embedder, b"key")
    retriever.search("a big egg", 3)
    retriever.search("a big egg", 3)
    texts = [text for call in embedder.calls for text in call]
    assert sorted(texts) == sorted(["a big egg", "a big egg", *(each.page_content for each in DOCUMENTS)])
    embedder.calls.clear()
    hits = StoreRetriever(store, embedder, b"key", Lengths()).search("a big egg", 3)
    assert [hit.score for hit in hits] == [13.0, 9.0, 9.0]
    assert not {each.page_content for each in DOCUMENTS} & {text for call in embedder.calls for text in call}


def test_a_filter_is_the_stores_own(found: StoreRetriever) -> None:
    hits = found.search("egg", 3, filter=lambda document: document.metadata["source"] == "c.txt")  # type: ignore[arg-type]
    assert [hit.document.id for hit in hits] == ["3"]


def test_duplicates_and_empty_texts_of_a_store_are_passed_over(embedder) -> None:
    class Careless(InMemoryVectorStore):
        def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
            return [DOCUMENTS[0], DOCUMENTS[0], Document(page_content=" "), DOCUMENTS[1]]

    hits = StoreRetriever(Careless(Letters()), embedder, b"").search("a", 4)
    assert sorted(str(hit.document.id) for hit in hits) == ["2", "mira's diary"]


def test_old_documents_are_forgotten(found: StoreRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_REMEMBERED", 2)
    first, second = found.search("egg head", 1)[0].id, found.search("a bad cab", 1)[0].id
    found.relevance([first], "keeps it")
    third = found.search("big bag", 1)[0].id
    assert len(found.relevance([first, third], "egg")) == 2
    with pytest.raises(RetrievalError) as caught:
        found.relevance([second], "egg")
    assert str(caught.value) == (
        f"The vector store has not found a document with the id {second!r} recently; search again."
    )


def test_a_store_that_fails(found: StoreRetriever, store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **named: object) -> None:
        raise ConnectionError("no route\nto the database")

    monkeypatch.setattr(InMemoryVectorStore, "similarity_search", fail)
    with pytest.raises(RetrievalError) as caught:
        found.search("egg", 1)
    assert str(caught.value) == (
        "The vector store InMemoryVectorStore failed with ConnectionError; fix it, then ask again."
    )
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
def test_what_cannot_be_opened(where: str, reason: str) -> None:
    for opened in (stores.open_store, stores.open_embedder):
        with pytest.raises(RetrievalError) as caught:
            opened(where)
        assert str(caught.value) == (
            f"langchain:{where} cannot be opened ({reason}); write langchain:MODULE:FUNCTION, whose module can "
            "be imported on that side's node."
        )


@pytest.mark.usefixtures("module")
def test_a_function_that_gives_something_else() -> None:
    with pytest.raises(RetrievalError) as caught:
        stores.open_store("shelf:number")
    assert str(caught.value) == (
        "The index langchain:shelf:number must be a LangChain VectorStore, but the function gave a int; "
        "return one."
    )
    with pytest.raises(RetrievalError, match="must be a LangChain Embeddings, but the function gave a int"):
        stores.open_embedder("shelf:number")


def test_documents_that_json_or_utf8_cannot_hold(tmp_path: Path, embedder) -> None:
    """Half a surrogate pair in text, metadata, source and id; keys of metadata that are not strings."""
    documents = [
        Document(
            page_content="half \ud83d pair", metadata={"source": "a\ud800", "author": "\udfff", 1: "one"}
        ),
        Document(
            page_content="half \ud83d pair", metadata={"source": "a\ud801", None: [2, "\ud800"], "1": "two"}
        ),
        Document(
            page_content="mixed keys", metadata={1: {2: 3, "x": (4,)}, "1": "a string wins", 2.5: "\ud800"}
        ),
        Document(id="\ud800", page_content="an odd id"),
        Document(id="\ud800", page_content="the same odd id"),
    ]
    report = build_index(documents, tmp_path / "i", embedder)
    assert report.problems == [
        "A second document with the id \\ud800 was left out; give each an id of its own."
    ]
    index = Index.open(tmp_path / "i")
    assert [(chunk.page_content, chunk.metadata) for chunk in index.chunks()] == [
        ("half ? pair", {"source": "a\\ud800", "author": "?", "1": "one", "chunk": 0}),
        ("half ? pair", {"source": "a\\ud801", "None": [2, "?"], "1": "two", "chunk": 0}),
        ("mixed keys", {"source": "", "1": "a string wins", "2.5": "?", "chunk": 0}),
        ("an odd id", {"source": "\\ud800", "chunk": 0}),
    ]
    assert build_index(documents, tmp_path / "i", embedder).is_unchanged
    hits = Retriever(index, embedder).search("half", 2, filter={"1": "two", "source": "a\\ud801"})
    assert [hit.document.metadata["source"] for hit in hits] == ["a\\ud801"]


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
