"""An index, open for reading: vectors in FAISS, chunks in the database, and the manifest that binds them."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import old_format
from tandem.retrieval.documents import Document
from tandem.retrieval.manifest import Manifest, damaged
from tandem.retrieval.store import NoIndexError, Snapshot
from tandem.retrieval.tables import Filter
from tandem.retrieval.vectors import VectorIndex, cosines

SCORE_ALL = 10_000
"""Rows that a filter may leave and that are all scored rather than searched: 15 MB at dimension 384."""

REFINE = 10
"""Rows that a quantised kind finds by its codes for each one kept by its vector."""

_ATTEMPTS = 3


class Index(Snapshot):
    """An index, open for reading: the database as it was when opened, and the vectors that belong to it."""

    vector_index: VectorIndex
    _embeddings: NDArray[np.float32] | None  # [n, d] on disk, for a kind that does not give them back exactly

    @classmethod
    def open(cls, directory: Path, embedder_fingerprint: str | None = None, *, num_threads: int = 1) -> Index:
        """Opens an index after checking its manifest, the checksums of all it holds, and the embedder if one is given.

        An index of Tandem 0.1 is converted. Raises RetrievalError, one sentence with the remedy, if anything does not
        fit.
        """
        for _ in range(_ATTEMPTS):
            index = cls._open_or_convert(directory)
            try:
                _check_embedder(directory, index.manifest, embedder_fingerprint)
                index.verify()
                index._load_vectors(num_threads)
                return index
            except FileNotFoundError as error:
                index.close()
                missing = Path(str(error.filename)).name
                if read_manifest(directory) == index.manifest:  # else it was just rebuilt: read the new one
                    raise damaged(directory, f"{missing} is missing") from None
            except BaseException:
                index.close()
                raise
        raise RetrievalError(f"The index {directory} is being rebuilt again and again; wait, then open it.")

    @classmethod
    def _open_or_convert(cls, directory: Path) -> Index:
        try:
            return cls(directory)
        except NoIndexError:
            if old_format.convert(directory):
                return cls(directory)
            raise

    def _load_vectors(self, num_threads: int) -> None:
        """Opens the files of vectors. FileNotFoundError if one is missing, RetrievalError if one does not fit."""
        directory, manifest = self.directory, self.manifest
        paths = {Path(name).suffix: directory / name for name in manifest.files}
        try:
            self.vector_index = vectors = VectorIndex.read(paths[".faiss"], num_threads)
            self._embeddings = _map_embeddings(paths[".npy"], manifest) if ".npy" in paths else None
        except FileNotFoundError:
            raise
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            for path in paths.values():
                if not path.exists():  # FAISS has no error of its own for this
                    raise FileNotFoundError(errno.ENOENT, "removed", str(path)) from None
            raise damaged(directory, f"a file cannot be read ({str(error).splitlines()[0][:100]})") from None
        if vectors.dimension != manifest.dimension:
            sizes = f"its vectors have dimension {vectors.dimension}, its manifest says {manifest.dimension}"
            raise damaged(directory, sizes)
        if len(vectors) != manifest.count:
            counts = f"its counts differ ({len(vectors)} vectors, {manifest.count} in the manifest)"
            raise damaged(directory, counts)

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
        return self._embeddings is not None or self.vector_index.is_exact

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
            rows = self._among(vector, k, self.select_rows(filter))
        else:
            rows, _ = self.vector_index.search(vector, k * self._refine)
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
        return self.vector_index.vectors(rows)

    def document(self, row: int) -> Document:
        """The chunk of a row, with its id and metadata."""
        return self.documents([row])[0]

    @property
    def _refine(self) -> int:
        return 1 if self._embeddings is None else REFINE

    def _among(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the allowed rows those nearest to `vector`, k at least if there are so many."""
        if len(allowed) > SCORE_ALL:
            with suppress(RuntimeError):  # some kinds cannot keep to a set of rows
                rows, _ = self.vector_index.search(vector, k * self._refine, allowed)
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


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an index, also of one of Tandem 0.1, which stays as it is. RetrievalError if there is none."""
    return _inspect(directory, is_verified=False)


def verify_index(directory: Path) -> Manifest:
    """The manifest of an index whose content fits its checksums; it is not opened or converted.

    RetrievalError, or OSError where something cannot be read.
    """
    return _inspect(directory, is_verified=True)


def _inspect(directory: Path, *, is_verified: bool) -> Manifest:
    try:
        with Snapshot(directory) as snapshot:
            if is_verified:
                snapshot.verify()
            return snapshot.manifest
    except NoIndexError:
        if not old_format.is_old(directory):
            raise
        return old_format.verify(directory) if is_verified else old_format.read_manifest(directory)[0]


def _map_embeddings(path: Path, manifest: Manifest) -> NDArray[np.float32]:
    """The vectors on disk [count, d], mapped; ValueError if they do not fit."""
    vectors: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    if vectors.shape != (manifest.count, manifest.dimension) or vectors.dtype != np.float32:
        raise ValueError(f"{path.name} has the shape {vectors.shape} and the type {vectors.dtype}")
    return vectors.view(np.ndarray)  # still mapped; memmap's own indexing takes half as long again


def _check_embedder(directory: Path, manifest: Manifest, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != manifest.embedder_fingerprint:
        raise RetrievalError(
            f"An index must be searched with the embedder that built it, but {directory} was built with "
            f"{manifest.embedder} ({manifest.embedder_fingerprint[:8]}) and the embedder here is "
            f"{fingerprint[:8]}; "
            "use that embedder, or build the index again with `tandem index`."
        )
