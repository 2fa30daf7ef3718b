"""An index on disk: vectors, chunks and the manifest that binds them.

Knows rows, ids, vectors and chunks; asks an embedder only while building. Knows nothing of queries as text.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import embedded, kinds
from tandem.retrieval import manifest as manifests
from tandem.retrieval.chunks import ChunkStore
from tandem.retrieval.documents import Document
from tandem.retrieval.embedded import Progress
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.filters import Filter, Metadata
from tandem.retrieval.manifest import Manifest, damaged
from tandem.retrieval.vectors import VectorIndex, cosines

VECTORS = "vectors.faiss"
SCORE_ALL = 10_000
"""Rows that a filter may leave and that are all scored rather than searched: 15 MB at dimension 384."""

REFINE = 10
"""Rows that a quantised kind finds by its codes for each one kept by its vector."""

_ATTEMPTS = 3


class Index:
    """An index, open for reading; stays whole when it is rebuilt on disk meanwhile."""

    def __init__(
        self,
        manifest: Manifest,
        vectors: VectorIndex,
        chunks: ChunkStore,
        embeddings: NDArray[np.float32] | None = None,
    ) -> None:
        """Joins opened files that fit; `open` and `build` are the usual ways.

        embeddings: the vectors [n, d] on disk, for a kind that does not give them back exactly.
        """
        self.manifest = manifest
        self._vectors = vectors
        self._chunks = chunks
        self._embeddings = embeddings
        self._metadata = Metadata(chunks)

    @classmethod
    def build(
        cls,
        directory: Path,
        documents: Sequence[Document],
        embedder: TextEmbedder,
        factory: str = kinds.AUTO,
        *,
        id_key: bytes = b"",
        num_threads: int = 1,
        progress: Progress | None = None,
    ) -> Index:
        """Writes the index of chunks (from `split`) in place of what `directory` held, and opens it.

        See `write_index`, which says more. Raises RetrievalError; whatever fails, the previous index is kept.
        """
        from tandem.retrieval.writer import write_index

        write_index(
            directory, documents, embedder, factory, id_key=id_key, num_threads=num_threads, progress=progress
        )
        return cls.open(directory, embedder.fingerprint, num_threads=num_threads)

    @classmethod
    def open(cls, directory: Path, embedder_fingerprint: str | None = None, *, num_threads: int = 1) -> Index:
        """Opens an index after checking its manifest, the checksum of every file, and the embedder if one is
        given.

        Raises RetrievalError, one sentence with the remedy, if anything does not fit.
        """
        for _ in range(_ATTEMPTS):
            manifest = manifests.read(directory)
            _check_embedder(directory, manifest, embedder_fingerprint)
            try:
                return cls._opened(directory, manifest, num_threads)
            except FileNotFoundError as error:
                missing = Path(str(error.filename)).name
                if manifests.read(directory) == manifest:  # else it was just rebuilt: read the new one
                    raise damaged(directory, f"{missing} is missing") from None
        raise RetrievalError(f"The index {directory} is being rebuilt again and again; wait, then open it.")

    @classmethod
    def _opened(cls, directory: Path, manifest: Manifest, num_threads: int) -> Index:
        manifests.verify(directory, manifest)
        folder = directory / manifest.folder
        try:
            vectors, chunks = VectorIndex.read(folder / VECTORS, num_threads), ChunkStore(folder)
            embeddings = _embeddings(folder, manifest)
        except FileNotFoundError:
            raise
        except (RuntimeError, OSError, ValueError) as error:
            if not (folder / VECTORS).exists():  # FAISS has no error of its own for this
                raise FileNotFoundError(errno.ENOENT, "removed", str(folder / VECTORS)) from None
            raise damaged(directory, f"a file cannot be read ({str(error).splitlines()[0][:100]})") from None
        if vectors.dimension != manifest.dimension:
            raise damaged(
                directory,
                f"its vectors have dimension {vectors.dimension}, its manifest says {manifest.dimension}",
            )
        if not len(vectors) == len(chunks) == manifest.count:
            counts = f"{len(vectors)} vectors, {len(chunks)} chunks, {manifest.count} in the manifest"
            raise damaged(directory, f"its counts differ ({counts})")
        return cls(manifest, vectors, chunks, embeddings)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.manifest.dimension

    def __len__(self) -> int:
        """Number of chunks."""
        return self.manifest.count

    @property
    def is_exact(self) -> bool:
        """Whether `vectors` gives the very vectors of the embedder."""
        return self._embeddings is not None or self._vectors.is_exact

    def search(
        self, vector: NDArray[np.float32], k: int, filter: Filter | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and cosines [<= k] of the chunks nearest to a unit vector [d], best first.

        filter: metadata that each must have, {key: value or list of values}; then every row fits, and there
        are k unless fewer fit. Cosines are those of the stored vectors, whatever FAISS approximates while
        searching. RetrievalError if k < 1, for a vector of another length, or an unknown metadata key.
        """
        self._check_search(vector, k)
        if filter:
            rows = self._among(vector, k, self._metadata.rows(filter))
        else:
            rows, _ = self._vectors.search(vector, k * self._refine)
        stored = self.vectors(rows)
        if len(rows) > k:  # single precision says which are worth double
            best = np.argsort(-(stored @ vector), kind="stable")[:k]
            rows, stored = rows[best], stored[best]
        scores = cosines(stored, vector)
        best = np.lexsort((rows, -scores))
        return rows[best], scores[best]

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors [len(rows), d]."""
        if self._embeddings is not None:
            return self._embeddings[rows]
        return self._vectors.vectors(rows)

    def document(self, row: int) -> Document:
        """The chunk of a row, with its id and metadata."""
        return self.documents(np.array([row]))[0]

    def documents(self, rows: NDArray[np.int64]) -> list[Document]:
        """The chunk of each row [n]."""
        return self._chunks.documents(rows)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id; RetrievalError if one is unknown."""
        return self._chunks.rows(ids)

    def ids(self) -> list[str]:
        """The id of each row."""
        return self._chunks.ids()

    @property
    def _refine(self) -> int:
        return 1 if self._embeddings is None else REFINE

    def _among(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the allowed rows those nearest to `vector`, k at least if there are so many."""
        if len(allowed) > SCORE_ALL:
            with suppress(RuntimeError):  # some kinds cannot keep to a set of rows
                rows, _ = self._vectors.search(vector, k * self._refine, allowed)
                if len(rows) >= k:
                    return rows
        best = [allowed[:0]]
        for start in range(0, len(allowed), SCORE_ALL):
            rows = allowed[start : start + SCORE_ALL]
            best.append(rows[np.argsort(-cosines(self.vectors(rows), vector), kind="stable")[:k]])
        return np.concatenate(best)

    def _check_search(self, vector: NDArray[np.float32], k: int) -> None:
        if k < 1:
            raise RetrievalError(f"A search must ask for at least 1 document, but k is {k}; raise it.")
        if vector.shape != (self.dimension,):
            raise RetrievalError(
                f"The index holds vectors of dimension {self.dimension}, but the query's has shape "
                f"{vector.shape}; "
                "use the embedder that built it."
            )


def _embeddings(folder: Path, manifest: Manifest) -> NDArray[np.float32] | None:
    """The vectors on disk [count, d], mapped, if the index has them; ValueError if they do not fit."""
    if embedded.NAME not in manifest.files:
        return None
    vectors: NDArray[np.float32] = np.load(folder / embedded.NAME, mmap_mode="r", allow_pickle=False)
    if vectors.shape != (manifest.count, manifest.dimension) or vectors.dtype != np.float32:
        raise ValueError(f"{embedded.NAME} has the shape {vectors.shape} and the type {vectors.dtype}")
    return vectors.view(np.ndarray)  # still mapped; memmap's own indexing takes half as long again


def _check_embedder(directory: Path, manifest: Manifest, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != manifest.embedder_fingerprint:
        raise RetrievalError(
            f"An index must be searched with the embedder that built it, but {directory} was built with "
            f"{manifest.embedder} ({manifest.embedder_fingerprint[:8]}) and the embedder here is "
            f"{fingerprint[:8]}; "
            "use that embedder, or build the index again with `tandem index`."
        )
