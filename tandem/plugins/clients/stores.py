"""LangChain both ways: its embeddings and vector stores inside Tandem, Tandem's inside LangChain.

    LangChain -> Tandem    LangChainEmbedder (embeds for an index), StoreRetriever (a store in place of an index)
    Tandem -> LangChain    TandemEmbeddings, TandemRetriever

Documents need no adapter: both use LangChain's class. `langchain-core` is imported with this module.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document, chunk_id, writable
from tandem.retrieval.embedding import TextEmbedder, reason_of
from tandem.retrieval.index import cosines
from tandem.retrieval.retriever import POOL, Hit, Retriever, Scorer, embed_query
from tandem.retrieval.store import Filter

Answer = TypeVar("Answer")

PREFIX = "langchain:"
"""Of the settings that name a store or embedder."""
MAX_REMEMBERED = 4096
"""Documents of a store whose vectors are kept, at most: the found ones of hundreds of queries."""


class LangChainEmbedder:
    """A LangChain `Embeddings` as the embedder of an index and of its retriever.

    Queries and growing answers go to its `embed_query`, documents to `embed_documents`; how it treats texts that
    are too long is its own affair.
    """

    window = None

    def __init__(self, embeddings: Embeddings, name: str) -> None:
        """name: which model it is; indexes are refused under another name, so a new model needs a new one."""
        self.name = name
        self.dimension = len(_ask(name, lambda: embeddings.embed_query("dimension")))
        self.fingerprint = blake2b(f"langchain {name} {self.dimension}".encode(), digest_size=16).hexdigest()
        self._embeddings = embeddings

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]; RetrievalError for other shapes, or when it fails."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        model = self._embeddings
        vectors = _ask(
            self.name,
            lambda: np.array(
                [model.embed_query(text) for text in texts]
                if is_query
                else model.embed_documents(list(texts)),
                np.float64,
            ),
        )
        if vectors.shape != (len(texts), self.dimension):
            raise RetrievalError(
                f"The embedder {self.name} must give {len(texts)} vectors of length {self.dimension}, but it "
                f"gave the shape {vectors.shape}; use a model with one length."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.ascontiguousarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


class TandemEmbeddings(Embeddings):
    """An embedder of Tandem's as LangChain's `Embeddings`."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self._embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A unit vector a text."""
        vectors: list[list[float]] = self._embedder.embed(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """A unit vector."""
        vector: list[float] = self._embedder.embed([text], is_query=True)[0].tolist()
        return vector


class TandemRetriever(BaseRetriever):
    """An index of Tandem's as a LangChain retriever, for chains: `TandemRetriever(source=Retriever.open(...))`."""

    source: Retriever
    k: int = 4
    filter: dict[str, Any] | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [hit.document for hit in self.source.search(query, self.k, filter=self.filter)]


class StoreRetriever:
    """A LangChain vector store where a `Retriever` is expected: the store finds, Tandem's embedder weighs.

    Both sides must weigh by one scale, so scores are cosines of Tandem's embedder, whatever the store searches
    by. Ids are made here: a store's own may say what the other side should not know.
    """

    def __init__(
        self, store: VectorStore, embedder: TextEmbedder, id_key: bytes, scorer: Scorer | None = None
    ) -> None:
        """id_key: secret bytes for the ids, as for `chunk_id`. scorer: None is the embedder's cosine."""
        self._store = store
        self.embedder = embedder
        self._id_key = id_key
        self.scorer = scorer
        self._seen: OrderedDict[str, tuple[str, NDArray[np.float32]]] = OrderedDict()  # text and vector by id
        self.num_documents = None  # a store need not know
        self.ranks_again = True  # it finds by its own measure
        self.kind = f"LangChain {type(store).__name__}"

    def search(self, query: str, k: int, *, filter: Filter | None = None) -> list[Hit]:
        """The k documents that the store finds, by cosine, best first (fewer if it finds fewer). A scoring model of its
        own chooses them from POOL k.

        filter: handed to the store, whose own rules hold. RetrievalError for a query without text, k < 1, or when the
        store fails.
        """
        vector = embed_query(query, k, self.embedder)
        pool = k if self.scorer is None else POOL * k
        documents: dict[str, Document] = {}
        for document in self._query_store(query, pool, filter):
            source = f"{document.id} {document.metadata.get('source', '')}"
            documents[chunk_id(document.page_content, source, key=self._id_key)] = document
        self._remember(documents)
        scores = self.relevance(list(documents), query, vector)
        hits = [Hit(name, documents[name], score) for name, score in zip(documents, scores, strict=True)]
        return sorted(hits, key=lambda hit: -hit.score)[:k]

    def relevance(
        self, ids: Sequence[str], text: str, vector: NDArray[np.float32] | None = None
    ) -> list[float]:
        """R(d, text) of documents that a search found. RetrievalError if an id is unknown.

        vector: that of the text, [d], if it is known.
        """
        if not ids:
            return []
        for name in ids:
            if name not in self._seen:
                raise RetrievalError(
                    f"The vector store has not found a document with the id {name!r} recently; search again."
                )
            self._seen.move_to_end(name)
        texts, vectors = zip(*(self._seen[name] for name in ids), strict=True)
        if self.scorer is not None:
            return self.scorer.scores(text, texts)
        if vector is None:
            vector = self.embedder.embed([text], is_query=True)[0]
        return [float(score) for score in cosines(np.stack(vectors), vector)]

    def _query_store(self, query: str, k: int, filter: Filter | None) -> list[Document]:
        """The documents that the store finds, without those that hold no text."""
        named = {"filter": filter} if filter else {}
        try:
            documents = self._store.similarity_search(query, k, **named)
        except Exception as error:  # stores have no common error
            raise RetrievalError(
                f"The vector store {type(self._store).__name__} failed with {type(error).__name__}; fix it, then ask "
                "again."
            ) from error
        return [
            document.model_copy(update={"page_content": writable(document.page_content)})
            for document in documents
            if document.page_content.strip()
        ]

    def _remember(self, documents: dict[str, Document]) -> None:
        """Embeds new documents, unless another model scores, and forgets the least recently used ones."""
        new = [name for name in documents if name not in self._seen]
        texts = [documents[name].page_content for name in new]
        vectors = self.embedder.embed(texts) if new and self.scorer is None else np.zeros((len(new), 0))
        self._seen.update(zip(new, zip(texts, vectors, strict=True), strict=True))
        while len(self._seen) > max(MAX_REMEMBERED, len(documents)):
            self._seen.popitem(last=False)


def open_retriever(where: str, embedder: TextEmbedder, scorer: Scorer | None) -> StoreRetriever:
    """The search of a vector store, of the setting "langchain:MODULE:FUNCTION". where: MODULE:FUNCTION."""
    return StoreRetriever(_make(where, "index", VectorStore), embedder, secrets.token_bytes(32), scorer)


def open_embedder(where: str) -> LangChainEmbedder:
    """The embedder of "langchain:MODULE:FUNCTION", whose function returns `Embeddings`; that is its name too.

    where: MODULE:FUNCTION.
    """
    return LangChainEmbedder(_make(where, "embedder", Embeddings), f"{PREFIX}{where}")


def _make(where: str, what: str, kind: type) -> Any:
    """What a function of the user's returns, called without arguments. RetrievalError if that is none of this kind."""
    module, _, function = where.partition(":")
    try:
        made = getattr(import_module(module), function)()
    except Exception as error:  # whatever the user's code raises
        raise RetrievalError(
            f"{PREFIX}{where} cannot be opened ({reason_of(error)}); write {PREFIX}MODULE:FUNCTION, whose module can "
            "be imported on that side's node."
        ) from error
    if not isinstance(made, kind):
        raise RetrievalError(
            f"The {what} {PREFIX}{where} must be a LangChain {kind.__name__}, but the function gave a "
            f"{type(made).__name__}; return one."
        )
    return made


def _ask(name: str, ask: Callable[[], Answer]) -> Answer:
    """Ask the user's embeddings."""
    try:
        return ask()
    except Exception as error:  # embeddings have no common error
        raise RetrievalError(
            f"The embedder {name} failed ({reason_of(error)}); fix it, then try again."
        ) from error
