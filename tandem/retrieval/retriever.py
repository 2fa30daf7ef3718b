"""Finds the documents for a query, scores how relevant each is to later text, and opens what settings name for it.

Joins an index, an embedder and, where there is one, a scoring model; what the scores become is decided elsewhere.

The index of documents that come with Tandem is built at first use and kept in the user's cache folder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem import plugins
from tandem.config.parties import SearchBy
from tandem.config.schema import Config, RetrievalConfig
from tandem.corpora import CORPORA, VECTORS
from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document, join_texts
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, check_number, cosines
from tandem.retrieval.store import Filter, Snapshot, read_manifest, text_key
from tandem.system.paths import cache_folder, locked, write_whole

_log = logging.getLogger("tandem")

POOL = 4
"""Documents that each way to search finds, and of which a scoring model ranks the best, for each one asked for."""
RANK_CONSTANT = 2
"""What is added to a rank before rankings are fused. The 60 of the paper are for long lists: then of two hits neither
need be what words or vectors have first."""
EMBEDDER = "embedder"
"""The name in the settings that stands for no scoring model of its own: the embedder's cosine."""


class Scorer(Protocol):
    """The port by which a retriever asks a scoring model."""

    name: str  # that people use
    fingerprint: str  # equal for two scoring models only if they give the same scores (up to rounding)

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        """R(d, text) of each document [len(documents)]; higher is more relevant, the unit is the model's own."""


def load_scorer(name: str, *, num_threads: int | None = None) -> Scorer | None:
    """The scoring model that `weights.scorer` names, a plugin's or one that `tandem.plugins.embedders` loads; None for
    "embedder". Raises RetrievalError."""
    if name == EMBEDDER:
        return None
    scorer: Scorer
    if plugin := plugins.split("scorer", name):
        scorer = plugins.find("scorer", plugin[0])(plugin[1])
    else:
        scorer = plugins.find("scorer", "local")(name, num_threads=num_threads)
    return scorer


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a search found."""

    id: str  # opaque and stable: the other side may see it
    document: Document  # stays on this side
    score: float  # of the scoring model: for the embedder the cosine of document and query, -1 to 1


class DocumentSearch(Protocol):
    """A party's documents as its retriever asks for them: an index, or the store of a plugin."""

    embedder: TextEmbedder
    scorer: Scorer | None
    ranks_again: bool  # what it finds first is ranked again, so that the k best are not the first of more

    @property
    def num_documents(self) -> int | None:
        """How many there are; None: it cannot tell."""

    @property
    def kind(self) -> str:
        """What it is, for people."""

    def search(self, query: str, k: int, *, filter: Filter | None = None) -> list[Hit]:
        """The k best documents, best first. RetrievalError for a query without text, or k < 1."""

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """R(d, text) of documents that a search found. RetrievalError if an id is unknown."""


class Retriever:
    """Search and relevance over one index, which each search opens again if it changed on disk. Safe for threads."""

    def __init__(
        self,
        index: Index,
        embedder: TextEmbedder,
        scorer: Scorer | None = None,
        search_by: SearchBy = "hybrid",
        *,
        num_threads: int = 1,
    ) -> None:
        """RetrievalError if the embedder's vectors do not fit the index. scorer: None is the embedder's cosine.

        num_threads: for searches once the index was opened again.
        """
        if embedder.dimension != index.manifest.dimension:
            raise RetrievalError(
                f"The index holds vectors of dimension {index.manifest.dimension}, but the embedder {embedder.name} "
                f"gives {embedder.dimension}; use {index.manifest.embedder}, or build the index again with "
                "`tandem index`."
            )
        self.index = index  # that the last search used
        self.embedder, self.scorer = embedder, scorer
        self.search_by = search_by
        self.ranks_again = scorer is not None or search_by == "hybrid"
        self._num_threads = num_threads
        self._state: object = (index.manifest, index.written_ms)  # on disk when it was last looked at
        self._refreshing = Lock()

    @classmethod
    def open(cls, directory: Path, embedder: TextEmbedder, *, num_threads: int = 1) -> Retriever:
        """A retriever over the index in a folder; RetrievalError if it is damaged or of another embedder."""
        index = Index.open(directory, embedder.fingerprint, num_threads=num_threads)
        return cls(index, embedder, num_threads=num_threads)

    def close(self) -> None:
        """Frees the files; nothing can be searched afterwards."""
        self.index.close()

    @property
    def num_documents(self) -> int:
        """Chunks that can be found."""
        return len(self.index)

    @property
    def kind(self) -> str:
        """The kind of its index: a FAISS factory string."""
        return self.index.manifest.factory

    def search(self, query: str, k: int, *, filter: Filter | None = None) -> list[Hit]:
        """The k documents that fit the query best, best first (fewer if the index holds or finds fewer).

        Those nearest to it, those that fit its words best, those that fit its numbers and codes best, and those of
        files whose names it gives, POOL k each, are fused by their ranks (`fuse`); equals are ranked by their cosine,
        then by their row. Of documents with one text the first is taken. With a scoring model of its own the POOL k
        best of them are ranked again by their scores. search_by "dense" or "words" is the first or
        the second ranking alone.

        filter: metadata that each hit must have, as {"source": "a.txt", "page": [1, 2]}; unless only words are searched
        for, k hits are returned if that many texts have it. Scores are those that `relevance` gives for the query,
        however a document was found. RetrievalError for a query without text, k < 1, or a metadata key that no document
        has.
        """
        vector = embed_query(query, k, self.embedder)
        self.refresh()
        index, pool = self.index, POOL * k if self.ranks_again else k
        wanted = k if self.scorer is None else pool
        num_before = -1
        while True:
            documents, scores, num_found = self._ranked(index, query, vector, pool, filter)
            if len(documents) >= wanted or num_found == num_before:
                break
            num_before, pool = num_found, POOL * pool  # copies may have taken places
        documents, scores = documents[:wanted], scores[:wanted]
        if self.scorer is not None:
            scores = np.array(self.scorer.scores(query, [document.page_content for document in documents]))
            best = np.argsort(-scores, kind="stable")[:k]
            documents, scores = [documents[place] for place in best], scores[best]
        return [
            Hit(str(document.id), document, score)
            for document, score in zip(documents, scores.tolist(), strict=True)
        ]

    def _ranked(
        self, index: Index, query: str, vector: NDArray[np.float32], pool: int, filter: Filter | None
    ) -> tuple[list[Document], NDArray[np.float64], int]:
        """The documents that rankings of `pool` documents find, best first, each text once; their cosines; and how many
        were found with copies."""
        rankings = []
        if self.search_by != "words":
            rankings.append(index.search(vector, pool, filter)[0])
        if self.search_by != "dense":
            rankings.append(index.search_words(query, pool, filter))
        if self.search_by == "hybrid":  # else a near miss that also reads alike would beat the very code
            rankings.append(index.search_words(query, pool, filter, only_codes=True))
            named, counts = index.search_names(query, filter)
            order = np.lexsort((named, -cosines(index.vectors(named), vector), -counts))
            rankings.append(named[order][:pool])
        rows, fused = fuse(rankings)
        scores = cosines(index.vectors(rows), vector)
        best = np.lexsort((rows, -scores, -fused))
        documents = index.documents(rows[best])
        texts = [" ".join(document.page_content.split()) for document in documents]
        first = sorted({text: place for place, text in reversed([*enumerate(texts)])}.values())
        return [documents[place] for place in first], scores[best][first], len(rows)

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """R(d, text): the score of each document for a text, say question plus answer so far (DRAGON 4.1).

        A function of the documents, the text and the scoring model alone: no other id changes a score's bits. Of
        a text beyond the model's length the end counts. RetrievalError if an id is not of this index.
        """
        if not ids:
            return []
        rows = self.index.rows(ids)
        if self.scorer is not None:
            return self.scorer.scores(text, [each.page_content for each in self.index.documents(rows)])
        vector = self.embedder.embed([text], is_query=True)[0]
        return [float(score) for score in cosines(self.index.vectors(rows), vector)]

    def join(self, hits: Sequence[Hit]) -> list[Hit]:
        """Hits, best first, with two that were cut within one paragraph as one in the place of the better one."""
        joined, whole = list[Hit](), set[str]()
        for hit in hits:
            for place, better in enumerate(joined):
                text = None if better.id in whole else _text_of_both(better.document, hit.document)
                if text is not None:
                    name = f"{better.id}+{hit.id}"  # else one id would have two texts
                    document = better.document.model_copy(update={"page_content": text, "id": name})
                    joined[place] = Hit(name, document, better.score)
                    whole.add(name)
                    break
            else:
                joined.append(hit)
        return joined

    def marks(self, texts: Sequence[str]) -> bytes:
        """Of the words of some texts, as `Index.marks` has them."""
        return self.index.marks(texts)

    def refresh(self) -> None:
        """Opens the index that is on disk now. What was open before is kept, with a warning, if that cannot be."""
        if not self._refreshing.acquire(blocking=False):
            return  # another thread is at it
        directory, state = self.index.directory, None
        try:
            with suppress(RetrievalError), Snapshot(directory) as snapshot:
                state = snapshot.manifest, snapshot.written_ms
            if state == self._state:
                return
            self._state = state
            index = Index.open(directory, self.embedder.fingerprint, num_threads=self._num_threads)
            self.index = index
            _log.info("The index %s changed and was opened again: %d chunks.", directory, len(index))
        except (RetrievalError, OSError) as error:
            _log.warning(
                "The index %s changed and cannot be opened again, so searches use it as it was: %s",
                directory,
                error,
            )
        finally:
            self._refreshing.release()


def _text_of_both(one: Document, other: Document) -> str | None:
    """The text of two chunks that follow each other on one page of a source and share text; None: they do not."""
    first, second = sorted((one, other), key=lambda each: int(each.metadata["chunk"]))
    follows = {**first.metadata, "chunk": first.metadata["chunk"] + 1} == second.metadata
    return join_texts(first.page_content, second.page_content) if follows else None


def fuse(rankings: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Every row of some rankings [n], ascending, and its fused score [n]: the sum of 1 / (RANK_CONSTANT + rank) over
    the rankings that have it, where the first rank is 1.

    Reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009, "Reciprocal rank fusion outperforms Condorcet and
    individual rank learning methods".
    """
    rows = np.unique(np.concatenate(rankings))
    fused = np.zeros(len(rows))
    for ranking in rankings:
        fused[np.searchsorted(rows, ranking)] += 1 / (RANK_CONSTANT + 1 + np.arange(len(ranking)))
    return rows, fused


def embed_query(query: str, k: int, embedder: TextEmbedder) -> NDArray[np.float32]:
    """The unit vector [d] of a query for k documents. RetrievalError if it has no text, or k < 1."""
    if not query.strip():
        raise RetrievalError(f"The query is empty (got {query!r}); ask something.")
    check_number(k)
    vector: NDArray[np.float32] = embedder.embed([query], is_query=True)[0]
    return vector


def open_retriever(
    party: str, config: Config, embedder: TextEmbedder, scorer: Scorer | None = None
) -> DocumentSearch:
    """The retriever of a party's documents: its index, or the vector store of a plugin that `config` names.

    Raises RetrievalError where that is missing or damaged.
    """
    settings = config.party(party)
    if plugin := plugins.split("store", settings.index):
        store: DocumentSearch = plugins.find("store", plugin[0])(plugin[1], embedder, scorer)
        return store
    where = settings.with_names().index
    if where in CORPORA:
        where = str(build_given_index(party, embedder, where, **config.retrieval.build_options))
    return Retriever(Index.open(Path(where), embedder.fingerprint), embedder, scorer, settings.search_by)


def build_given_index(party: str, embedder: TextEmbedder, corpus: str = "bundled", **options: Any) -> Path:
    """Folder of the index of a party's documents in a corpus of `CORPORA`, built there unless it is up to date.

    It is kept in the user's cache folder, so only texts are embedded that neither it nor the corpus has vectors of.
    Nothing is read where the files have the sizes and times that they had when it was last built. options: as of
    `RetrievalConfig.build_options`.
    """
    options = RetrievalConfig().build_options | options
    made = sha256(f"{embedder.fingerprint} {options}".encode()).hexdigest()[:16]
    source, folder = CORPORA[corpus] / party, cache_folder() / f"{corpus}-{party}-{made}"
    seen, state = folder.with_name(f"{folder.name}.seen"), _state_of(source)

    def is_built() -> bool:
        with suppress(OSError, RetrievalError):
            if seen.read_text("utf-8") == state:
                Index.open(folder, embedder.fingerprint)
                return True
        return False

    if is_built():
        return folder
    from tandem.retrieval.build import build_index

    with locked(folder.with_name(f"{folder.name}.lock")):  # several processes and installations may share it
        if not is_built():
            build_index(
                source, folder, Prepared(embedder, CORPORA[corpus] / VECTORS), replace=True, **options
            )
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
            with np.load(file) as arrays:
                if str(arrays["fingerprint"]) == self.fingerprint:
                    self._vectors = dict(zip(map(bytes, arrays["keys"]), arrays["vectors"], strict=True))

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension], as of `TextEmbedder`."""
        prepared = [None if is_query else self._vectors.get(text_key(text)) for text in texts]
        others = [text for text, vector in zip(texts, prepared, strict=True) if vector is None]
        computed = iter(self._embedder.embed(others, is_query=is_query))
        vectors = [next(computed) if vector is None else vector for vector in prepared]
        return np.stack(vectors) if vectors else np.zeros((0, self.dimension), np.float32)


def corpus_of(party: str, config: Config) -> str:
    """The name in `CORPORA` of the documents that a party's index holds, be it built at first use or by a user, with
    others or without; "" for all other documents.

    Raises RetrievalError where the index is missing or damaged.
    """
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
    return settings.index_folder / "kv"
