"""Finds the documents for a query, and scores how relevant each is to any later text.

Joins an index, an embedder and, where there is one, a scoring model; what the scores become is decided elsewhere.
"""

from __future__ import annotations

import logging
import sqlite3
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder, model_digest, reason_of, without_progress_bar
from tandem.retrieval.index import Index, cosines, read_manifest
from tandem.retrieval.store import NAME, Filter, connect

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


# ---- A retriever's index, opened again when it changed on disk ---------------------------------------------


MAX_REMEMBERED = 4096
"""Documents that stay known after their index was replaced, at most: the found ones of hundreds of queries."""

_TIMEOUT_S = 1.0

_log = logging.getLogger("tandem")

State = tuple[int, int]
"""Number of the connection, and of what SQLite counted since it was opened."""


class Watch:
    """Says cheaply whether a database may have been written or replaced. Safe for several threads.

    The time and size of the files would not do: a commit writes its log first and shows itself later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._number = 0
        self._database: sqlite3.Connection | None = None
        self._lock = Lock()
        self.close = weakref.finalize(self, lambda: None)

    def state(self) -> State:
        """Differs from the last one if something was committed, or if the file is another one."""
        with self._lock:
            try:
                self._connect()
                assert self._database is not None
                return self._number, self._database.execute("PRAGMA data_version").fetchone()[0]
            except (OSError, sqlite3.Error):
                return self._number, -1

    def _connect(self) -> None:
        """Opens the file that is there now, unless it is open. An open file's inode is not used again."""
        inode = self._path.stat().st_ino
        if inode == self._inode and self._database is not None:
            return
        self.close()
        self._number += 1
        self._database = database = connect(self._path, _TIMEOUT_S)
        self.close = weakref.finalize(self, database.close)
        self._inode = inode


class FollowedIndex:
    """An index and what became of it on disk. Safe for several threads."""

    def __init__(self, index: Index, embedder_fingerprint: str, num_threads: int = 1) -> None:
        """index: as it was opened. num_threads: for searches in those that are opened later."""
        self.current = index
        self._fingerprint = embedder_fingerprint
        self._num_threads = num_threads
        self._watch = Watch(index.directory / NAME)
        self._state: State | None = None  # of the database when it was last looked at
        self._found: OrderedDict[str, None] = OrderedDict()  # ids, the most recent one last
        self._kept: dict[
            str, tuple[str, NDArray[np.float32]]
        ] = {}  # text and vector of what an earlier one held
        self._refreshing, self._noting = Lock(), Lock()

    def refresh(self) -> Index:
        """The index that is on disk now. What was open before is kept, with a warning, if that cannot be opened."""
        state = self._watch.state()
        if state != self._state and self._refreshing.acquire(blocking=False):
            try:
                self._state = state
                self._reopen()
            except (RetrievalError, OSError) as error:
                _log.warning(
                    "The index %s changed and cannot be opened again, so searches use it as it was: %s",
                    self.current.directory,
                    error,
                )
            finally:
                self._refreshing.release()
        return self.current

    def close(self) -> None:
        """Frees the files."""
        self._watch.close()
        self.current.close()

    def note(self, ids: Sequence[str]) -> None:
        """These documents were found: their scores will be asked for, whatever becomes of the index."""
        with self._noting:
            for name in ids:
                self._found[name] = None
                self._found.move_to_end(name)
            while len(self._found) > MAX_REMEMBERED:
                self._found.popitem(last=False)

    def texts(self, ids: Sequence[str]) -> list[str]:
        """The text of each document. RetrievalError if an id is of no index that was open here."""
        index, kept = self.current, self._kept
        fresh = index.documents(index.rows([name for name in ids if name not in kept]))
        texts = iter([document.page_content for document in fresh])
        return [kept[name][0] if name in kept else next(texts) for name in ids]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The vectors [len(ids), d], as they were when the documents were found. Errors: as `texts`."""
        index, kept = self.current, self._kept
        fresh = index.vectors(index.rows([name for name in ids if name not in kept]))
        if len(fresh) == len(ids):
            return fresh
        vectors = iter(fresh)
        return np.stack([kept[name][1] if name in kept else next(vectors) for name in ids])

    def _reopen(self) -> None:
        """Opens the index again if it is another one now. Raises RetrievalError or OSError."""
        previous = self.current
        if read_manifest(previous.directory) == previous.manifest:
            return
        index = Index.open(previous.directory, self._fingerprint, num_threads=self._num_threads)
        if index.dimension != previous.dimension:
            raise RetrievalError(
                f"its vectors have the length {index.dimension} instead of {previous.dimension}."
            )
        self._kept = self._remembered(previous)  # before anybody sees the new one
        self.current = index
        _log.info("The index %s changed and was opened again: %d chunks.", index.directory, len(index))

    def _remembered(self, previous: Index) -> dict[str, tuple[str, NDArray[np.float32]]]:
        """What was found lately, in the index that is left or in one before it."""
        with self._noting:
            ids = list(self._found)
        return (
            dict(zip(ids, zip(self.texts(ids), self.vectors(ids), strict=True), strict=True)) if ids else {}
        )


# ---- How relevant a document is to a text, read together ---------------------------------------------------


EMBEDDER = "embedder"
"""The name in the settings that stands for no scoring model of its own: the embedder's cosine."""


class Scorer(Protocol):
    """What a retriever asks of a scoring model."""

    @property
    def name(self) -> str:
        """How a person calls it."""

    @property
    def fingerprint(self) -> str:
        """Equal for two scoring models only if they give the same scores (up to rounding)."""

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        """R(d, text) of each document [len(documents)]; higher is more relevant, the unit is the model's own."""


class CrossEncoderScorer:
    """A sentence-transformers cross-encoder with one output. Calls from several threads are served one at a time."""

    def __init__(self, name: str, model: CrossEncoder) -> None:
        """Wraps a loaded model; `load` is the usual way."""
        import torch

        self.name = name
        self.fingerprint = _fingerprint(model)
        self._model: Any = model
        self._identity = torch.nn.Identity()
        self._lock = Lock()

    @classmethod
    def load(cls, name: str, *, device: str = "cpu", num_threads: int | None = None) -> CrossEncoderScorer:
        """Loads a model by hub name or local folder. Raises RetrievalError.

        num_threads: torch's threads for this whole process; None leaves them.
        """
        folder = Path(name).expanduser()
        if name.startswith(("/", ".", "~")) and not folder.is_dir():
            raise RetrievalError(
                f"A scoring model must be a folder or a hub name, but {name} does not exist; check the path."
            )
        where = str(folder) if folder.is_dir() else name
        import torch
        from sentence_transformers import CrossEncoder

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        try:
            with without_progress_bar():
                model = CrossEncoder(where, device=device, local_files_only=folder.is_dir())
        except Exception as error:  # hub, network, file and model errors have no common type
            raise RetrievalError(
                f"The scoring model {name} could not be loaded ({reason_of(error)}); give the folder or hub name "
                'of a cross-encoder, or set weights.scorer to "embedder".'
            ) from error
        if model.num_labels != 1:
            raise RetrievalError(
                f"A scoring model has one output, but {name} has {model.num_labels}; "
                "use a re-ranker such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )
        return cls(name, model.eval())

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        """The model's logit for each pair of text and document, before any sigmoid.

        One pair a pass: a document's score is the same bits whichever others are asked with it. Of a text that takes
        more than half of the model's length the end counts (a growing answer must keep counting), of a document the
        beginning.
        """
        if not documents:
            return []
        with self._lock:
            pairs = [(self._end_of(text), document) for document in documents]
            values = self._model.predict(
                pairs, batch_size=1, activation_fn=self._identity, show_progress_bar=False
            )
        return [float(value) for value in values]

    def _end_of(self, text: str) -> str:
        """The last words of a text, in at most half of the tokens that the model reads."""
        length = self._model.max_seq_length
        if not length:
            return text
        encoded = self._model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        offsets = encoded["offset_mapping"]
        excess = len(offsets) - max(1, length // 2 - 2)  # two of the three special tokens are on this side
        return text if excess <= 0 else text[offsets[excess][0] :]


def load_scorer(name: str, *, num_threads: int | None = None) -> Scorer | None:
    """The scoring model that `weights.scorer` names; None for "embedder". Raises RetrievalError."""
    return None if name == EMBEDDER else CrossEncoderScorer.load(name, num_threads=num_threads)


def _fingerprint(model: Any) -> str:
    """Hash of weights, vocabulary and length limit."""
    digest = blake2b(digest_size=16)
    model_digest(digest, model, [sorted(model.tokenizer.get_vocab().items()), model.max_seq_length])
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a search found."""

    id: str  # opaque and stable: the other side may see it
    document: Document  # stays on this side
    score: float  # of the scoring model: for the embedder the cosine of document and query, -1 to 1


class Retriever:
    """Search and relevance over one index, which each search opens again if it changed on disk."""

    def __init__(
        self, index: Index, embedder: TextEmbedder, scorer: Scorer | None = None, *, num_threads: int = 1
    ) -> None:
        """RetrievalError if the embedder's vectors do not fit the index. scorer: None is the embedder's cosine.

        num_threads: for searches once the index was opened again.
        """
        if embedder.dimension != index.dimension:
            raise RetrievalError(
                f"The index holds vectors of dimension {index.dimension}, but the embedder {embedder.name} "
                "gives "
                f"{embedder.dimension}; use {index.manifest.embedder}, or build the index again with "
                "`tandem index`."
            )
        self._followed = FollowedIndex(index, embedder.fingerprint, num_threads)
        self._embedder = embedder
        self._scorer = scorer

    @classmethod
    def open(cls, directory: Path, embedder: TextEmbedder, *, num_threads: int = 1) -> Retriever:
        """A retriever over the index in a folder; RetrievalError if it is damaged or of another embedder."""
        index = Index.open(directory, embedder.fingerprint, num_threads=num_threads)
        return cls(index, embedder, num_threads=num_threads)

    @property
    def index(self) -> Index:
        """The index that the last search used."""
        return self._followed.current

    def close(self) -> None:
        """Frees the files; nothing can be searched afterwards."""
        self._followed.close()

    @property
    def ranks_again(self) -> bool:
        """Whether a scoring model ranks the nearest again, so that the k best are not the first of more."""
        return self._scorer is not None

    @property
    def num_documents(self) -> int:
        """Chunks that can be found."""
        return len(self.index)

    @property
    def kind(self) -> str:
        """What searches them: a FAISS factory string."""
        return self.index.manifest.factory

    def search(
        self, query: str, k: int, given_texts: Sequence[str] = (), *, filter: Filter | None = None
    ) -> list[Hit]:
        """The k documents nearest to the query, best first (fewer if the index holds or finds fewer).

        given_texts: documents of no index; they follow in their order, scored alike, as given-1, given-2, ...
        filter: metadata that each hit must have, as {"source": "a.txt", "page": [1, 2]}; k hits are returned if
        that many have it. Scores are those that `relevance` gives for the query: with a scoring model of its own the k
        nearest are ranked again by it. RetrievalError for a query without text, k < 1 without given_texts, or a
        metadata key that no document has.
        """
        if not query.strip():
            raise RetrievalError(f"The query is empty (got {query!r}); ask something.")
        vector = self._embed(query)
        hits = [] if k == 0 and given_texts else self._nearest(query, vector, k, filter)
        return hits + score_texts(given_texts, query, vector, self._embedder, self._scorer)

    def _nearest(self, query: str, vector: NDArray[np.float32], k: int, filter: Filter | None) -> list[Hit]:
        index = self._followed.refresh()
        rows, scores = index.search(vector, k, filter)
        documents = index.documents(rows)
        self._followed.note([str(document.id) for document in documents])
        if self._scorer is not None:
            scores = np.asarray(self._scorer.scores(query, [document.page_content for document in documents]))
            order = np.lexsort((rows, -scores))
            documents, scores = [documents[place] for place in order], scores[order]
        return [
            Hit(str(document.id), document, score)
            for document, score in zip(documents, scores.tolist(), strict=True)
        ]

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """R(d, text): the score of each document for a text, say question plus answer so far (DRAGON 4.1).

        A function of the documents, the text and the scoring model alone: no other id changes a score's bits. Of
        a text beyond the model's length the end counts. What a search found stays known when the index changes.
        RetrievalError if an id is not of this index.
        """
        if not ids:
            return []
        if self._scorer is not None:
            return self._scorer.scores(text, self._followed.texts(ids))
        return [float(score) for score in cosines(self._followed.vectors(ids), self._embed(text))]

    def _embed(self, text: str) -> NDArray[np.float32]:
        """The unit vector [d] of one text, embedded alone, so that its bits do not depend on others."""
        vector: NDArray[np.float32] = self._embedder.embed([text], keep_end=True)[0]
        return vector


def score_texts(
    texts: Sequence[str],
    query: str,
    vector: NDArray[np.float32],
    embedder: TextEmbedder,
    scorer: Scorer | None,
) -> list[Hit]:
    """Texts of no index as documents, in their order, scored as those of an index are; vector [d]: the query's."""
    if not texts:
        return []
    if scorer is not None:
        scores = np.asarray(scorer.scores(query, texts), np.float64)
    else:
        scores = cosines(embedder.embed(list(texts)), vector)
    documents = [Document(page_content=text, id=f"given-{n}") for n, text in enumerate(texts, 1)]
    return [
        Hit(str(document.id), document, float(score))
        for document, score in zip(documents, scores, strict=True)
    ]
