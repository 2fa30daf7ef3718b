"""The vectors of an index in FAISS: built from a factory string, searched by inner product, given back by row.

FAISS and torch each bring an OpenMP runtime; both work in one process on Linux, and FAISS receives its number of
threads in every calling thread, since that setting belongs to the thread and not to the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.kinds import calm, keeping_to, parts, vectors_to_train, widen_search

TRAIN_PER_CENTROID = 64
"""Vectors to train with, for each centroid; more add minutes and next to no recall."""

MIN_TRAIN = 65_536
"""Vectors to train with, at least, where there are that many."""

ADD_AT_ONCE = 65_536

CACHE_LINE = 64
"""Bytes."""


class VectorIndex:
    """A FAISS index of unit vectors. Searches from several threads may overlap."""

    def __init__(self, index: Any, num_threads: int = 1) -> None:
        """index: a faiss.Index whose rows are numbered from 0 in the order of adding."""
        self.faiss_index = index
        self._num_threads = num_threads
        self._lock = Lock()
        self._is_mapped = False
        widen_search(index)

    @classmethod
    def build(cls, vectors: NDArray[np.float32], factory: str, num_threads: int = 1) -> VectorIndex:
        """Trains (where the kind needs it) and fills an index of `vectors` [n, d], which have unit length and may
        lie on disk: they are read in pieces.

        With one thread, equal vectors give an equal index. Raises RetrievalError for a factory string that
        FAISS does not take, that needs more vectors to train than there are, or that cannot give vectors
        back.
        """
        import faiss

        faiss.omp_set_num_threads(num_threads)
        try:
            index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
            for part in parts(index):
                calm(part)
            _check_training(index, factory, len(vectors))
            index.train(training_sample(vectors, vectors_to_train(index)))
            for block in blocks(vectors, ADD_AT_ONCE):
                index.add(block)
            built = cls(index, num_threads)
            built.vectors(np.zeros(1, np.int64))  # some kinds cannot
        except RuntimeError as error:
            raise RetrievalError(_refused(factory, error)) from None
        return built

    @classmethod
    def read(cls, path: Path, num_threads: int = 1) -> VectorIndex:
        """The index that `write` wrote; RuntimeError from FAISS if it is not one."""
        import faiss

        return cls(faiss.read_index(str(path)), num_threads)

    def write(self, path: Path) -> None:
        """Writes the index to `path`; OSError if the disk refuses.

        Through Python's file, since FAISS's own does not notice that the last bytes of a full disk are missing.
        """
        import faiss

        made: Any = faiss  # its stubs lack the writer
        refusals: list[OSError] = []

        def put(data: bytes) -> None:
            try:
                file.write(data)
            except OSError as error:
                refusals.append(error)
                raise

        with path.open("wb") as file:
            try:
                faiss.write_index(self.faiss_index, made.PyCallbackIOWriter(put, 1 << 20))
            except RuntimeError as error:
                raise (refusals or [OSError(str(error).strip().splitlines()[-1])])[0] from None

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.faiss_index.d)

    def __len__(self) -> int:
        """Number of vectors."""
        return int(self.faiss_index.ntotal)

    @property
    def is_exact(self) -> bool:
        """Whether `vectors` gives back the very vectors that were added."""
        import faiss

        kinds = (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexHNSWFlat, faiss.IndexRefineFlat)
        return isinstance(faiss.downcast_index(self.faiss_index), kinds)

    def search(
        self, vector: NDArray[np.float32], k: int, among: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and FAISS scores [<= k] of the nearest vectors to `vector` [d], best first.

        among: the only rows that may be found. Quantised kinds score by what they store; IVF and HNSW may find
        fewer than k. RuntimeError from FAISS if the kind cannot keep to `among`.
        """
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        parameters = None if among is None else keeping_to(self.faiss_index, among)
        scores, rows = self.faiss_index.search(aligned(vector[None]), min(k, len(self)), params=parameters)
        is_found = rows[0] >= 0
        return rows[0][is_found], scores[0][is_found]

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors [len(rows), d]; a quantised kind gives what it kept of them."""
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        self._map_rows()
        stored = self.faiss_index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))
        return np.asarray(stored, np.float32)

    def _map_rows(self) -> None:
        """IVF only, once: the table from row to place, 8 bytes a vector, which FAISS does not store."""
        import faiss

        if self._is_mapped:
            return
        with self._lock:
            inverted = faiss.try_extract_index_ivf(self.faiss_index)
            if inverted is not None and not self._is_mapped:
                inverted.make_direct_map()
            self._is_mapped = True


def blocks(vectors: NDArray[np.float32], at_once: int) -> Iterator[NDArray[np.float32]]:
    """The rows of [n, d], `at_once` at a time and in memory, whether or not `vectors` is."""
    for start in range(0, len(vectors), at_once):
        yield np.ascontiguousarray(vectors[start : start + at_once], np.float32)


def aligned(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """A copy that begins with a cache line; for a query from another place FAISS takes up to a sixth longer."""
    room = np.empty(array.size + CACHE_LINE // 4 - 1, np.float32)
    start = -room.__array_interface__["data"][0] % CACHE_LINE // 4
    copy = room[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def cosines(vectors: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of [n, d] to a vector [d], in double precision; 0 where one has no length.

    Row by row rather than by a matrix product, whose last bits depend on the number of rows.
    """
    rows, other = vectors.astype(np.float64, order="C"), vector.astype(np.float64, order="C")
    lengths = np.sqrt(np.vecdot(rows, rows) * np.vecdot(other, other))
    lengths[lengths == 0] = np.inf
    result: NDArray[np.float64] = np.vecdot(rows, other) / lengths
    return result


def training_sample(vectors: NDArray[np.float32], num_centroids: int) -> NDArray[np.float32]:
    """Evenly spread rows of [n, d] to train that many centroids with."""
    count = max(MIN_TRAIN, TRAIN_PER_CENTROID * num_centroids)
    if count >= len(vectors):
        return np.ascontiguousarray(vectors, np.float32)
    return np.ascontiguousarray(vectors[np.arange(count) * len(vectors) // count], np.float32)


def _check_training(index: Any, factory: str, count: int) -> None:
    needed = vectors_to_train(index)
    if count < needed:
        raise RetrievalError(
            f'The index kind "{factory}" needs at least {needed} chunks to train, but there are {count}; '
            'use "Flat", a smaller kind, or more documents.'
        )


def _refused(factory: str, error: RuntimeError) -> str:
    reason = str(error).strip().splitlines()[-1].rpartition("Error: ")[2].rstrip(" .")[-120:]
    return (
        f'FAISS does not take the index kind "{factory}" for these vectors ({reason}); '
        'use one like "Flat", "IVF64,Flat", "HNSW32" or "IVF64,PQ48".'
    )
