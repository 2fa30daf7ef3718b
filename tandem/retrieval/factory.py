"""Open what a party's settings name: its embedder, its index or vector store, and the folder of its documents' caches.

The index of documents that come with Tandem is built at first use and kept in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tandem import plugins
from tandem.config.schema import Config
from tandem.corpora import CORPORA, VECTORS
from tandem.errors import RetrievalError
from tandem.retrieval.store import text_key
from tandem.system.paths import cache_folder, write_whole

if TYPE_CHECKING:
    from tandem.retrieval.embedding import TextEmbedder
    from tandem.retrieval.index import Index
    from tandem.retrieval.retriever import DocumentSearch, Scorer

KV = "kv"
"""Name of the folder of caches in that of an index."""


def load_embedder(name: str, *, num_threads: int | None = None) -> TextEmbedder:
    """The embedder of a setting: a plugin's ("langchain:MODULE:FUNCTION"), or what `Embedder.load` takes.

    Raises RetrievalError.
    """
    if plugin := plugins.split("embedder", name):
        embedder: TextEmbedder = plugins.find("embedder", plugin[0])(plugin[1])
        return embedder
    from tandem.retrieval.embedding import Embedder

    return Embedder.load(name, num_threads=num_threads)


def open_index(party: str, config: Config, embedder: TextEmbedder) -> Index:
    """The index that `config` names for a party. Raises RetrievalError where it is missing or damaged."""
    from tandem.retrieval.index import Index

    where = config.party(party).with_names().index
    folder = build_given_index(party, embedder, where) if where in CORPORA else Path(where)
    return Index.open(folder, embedder.fingerprint)


def open_retriever(
    party: str, config: Config, embedder: TextEmbedder, scorer: Scorer | None = None
) -> DocumentSearch:
    """The retriever of a party's documents: its index, or the vector store of a plugin that `config` names.

    Raises RetrievalError where that is missing or damaged.
    """
    from tandem.retrieval.retriever import Retriever

    settings = config.party(party)
    where = settings.index
    if plugin := plugins.split("store", where):
        store: DocumentSearch = plugins.find("store", plugin[0])(plugin[1], embedder, scorer)
        return store
    return Retriever(open_index(party, config, embedder), embedder, scorer, settings.search_by)


def build_given_index(party: str, embedder: TextEmbedder, corpus: str = "bundled") -> Path:
    """Folder of the index of a party's documents in a corpus of `CORPORA`, built there unless it is up to date.

    It is kept in the user's cache folder, so only texts are embedded that neither it nor the corpus has vectors of.
    Nothing is read where the files have the sizes and times that they had when it was last built.
    """
    from tandem.retrieval.index import Index

    source, folder = CORPORA[corpus] / party, cache_folder() / f"{corpus}-{party}-{embedder.fingerprint[:16]}"
    seen, state = folder.with_name(f"{folder.name}.seen"), _state_of(source)
    with suppress(OSError, RetrievalError):
        if seen.read_text("utf-8") == state:
            Index.open(folder, embedder.fingerprint)
            return folder
    from tandem.retrieval.build import build_index

    known = Prepared(embedder, CORPORA[corpus] / VECTORS)
    build_index(source, folder, known, replace=True)  # several installations may share it
    with suppress(OSError):  # then the files are read the next time, too
        write_whole(seen, state.encode())
    return folder


def _state_of(folder: Path) -> str:
    """Differs where a file of a folder, or of the code that reads and cuts it, is another one."""
    files = [*sorted(folder.rglob("*")), *sorted(Path(__file__).parent.glob("*.py"))]
    return "\n".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)


class Prepared:
    """An embedder, and the vectors that it has for the documents of a corpus, from a file there."""

    def __init__(self, embedder: TextEmbedder, file: Path) -> None:
        """file: an archive of numpy: the embedder's fingerprint, and for each text its key and vector."""
        self.name, self.fingerprint = embedder.name, embedder.fingerprint
        self.dimension, self.window = embedder.dimension, embedder.window
        self._embedder = embedder
        self._vectors: Mapping[bytes, NDArray[np.float32]] = {}
        if file.is_file():
            with np.load(file) as held:
                if str(held["fingerprint"]) == self.fingerprint:
                    self._vectors = dict(zip(map(bytes, held["keys"]), held["vectors"], strict=True))

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        """As every embedder's."""
        known = [None if is_query else self._vectors.get(text_key(text)) for text in texts]
        others = [text for text, vector in zip(texts, known, strict=True) if vector is None]
        computed = iter(self._embedder.embed(others, is_query=is_query))
        vectors = [next(computed) if vector is None else vector for vector in known]
        return np.stack(vectors) if vectors else np.zeros((0, self.dimension), np.float32)


def corpus_of(party: str, config: Config) -> str:
    """The name in `CORPORA` of the documents that a party's index holds, be it built at first use or by a user, with
    others or without; "" for all other documents.

    Raises RetrievalError where the index is missing or damaged.
    """
    from tandem.retrieval.store import read_manifest

    settings = config.party(party).with_names()
    if settings.index in CORPORA:
        return settings.index
    roots = [] if settings.index_folder is None else read_manifest(settings.index_folder).roots
    return next((name for name, folder in CORPORA.items() if str(folder / party) in roots), "")


def kv_folder(party: str, config: Config) -> Path:
    """The folder of the caches of a party's documents: in the folder of its index, if it has one."""
    settings = config.party(party).with_names()
    if settings.index_folder is None:
        return cache_folder() / f"{settings.index.partition(':')[0]}-{party}-kv"
    return settings.index_folder / KV
