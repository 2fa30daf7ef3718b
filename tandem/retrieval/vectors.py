"""The vectors of an index in FAISS: built from a factory string, searched by inner product, given back by
row.

Knows vectors and row numbers, nothing of texts. FAISS and torch each bring an OpenMP runtime; both work in
one process on Linux, and FAISS is told its number of threads in every calling thread, since that setting is
one of the thread and not of the process.
"""

from __future__ import annotations

import math
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.embedded import blocks

TRAIN_PER_CENTROID = 64
"""Vectors to train with, for each centroid; more add minutes and next to no recall."""

MIN_TRAIN = 65_536
"""Vectors to train with, at least, where there are that many."""

ADD_AT_ONCE = 65_536

MIN_EF_SEARCH = 64
"""Candidates that an HNSW search keeps, at least."""


class VectorIndex:
    """A FAISS index of unit vectors. Searches from several threads may overlap."""

    def __init__(self, index: Any, num_threads: int = 1) -> None:
        """index: a faiss.Index whose rows are numbered from 0 in the order of adding."""
        self._index = index
        self._num_threads = num_threads
        self._lock = Lock()
        self._is_mapped = False
        _widen_search(index)

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
        index = _made(vectors.shape[1], factory)
        _check_training(index, factory, len(vectors))
        try:
            index.train(_sample(vectors, vectors_to_train(index)))
            for block in blocks(vectors, ADD_AT_ONCE):
                index.add(block)
        except RuntimeError as error:
            raise RetrievalError(_refused(factory, error)) from None
        built = cls(index, num_threads)
        built._check_giving_back(factory)
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

        refusals: list[OSError] = []

        def put(data: bytes) -> None:
            try:
                file.write(data)
            except OSError as error:
                refusals.append(error)
                raise

        with path.open("wb") as file:
            try:
                faiss.write_index(self._index, faiss.PyCallbackIOWriter(put, 1 << 20))
            except RuntimeError as error:
                raise (refusals or [OSError(str(error).strip().splitlines()[-1])])[0] from None

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._index.d)

    def __len__(self) -> int:
        """Number of vectors."""
        return int(self._index.ntotal)

    @property
    def is_exact(self) -> bool:
        """Whether `vectors` gives back the very vectors that were added."""
        import faiss

        kinds = (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexHNSWFlat)
        return isinstance(faiss.downcast_index(self._index), kinds)

    def search(
        self, vector: NDArray[np.float32], k: int, among: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and FAISS scores [<= k] of the nearest vectors to `vector` [d], best first.

        among: the only rows that may be found. Quantised kinds score by what they store; IVF and HNSW may find
        fewer than k. RuntimeError from FAISS if the kind cannot keep to `among`.
        """
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        parameters = None if among is None else _keeping_to(self._index, _selector(among, len(self)))
        query = np.ascontiguousarray(vector[None], np.float32)
        scores, rows = self._index.search(query, min(k, len(self)), params=parameters)
        is_found = rows[0] >= 0
        return rows[0][is_found], scores[0][is_found]

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors [len(rows), d]; a quantised kind gives what it kept of them."""
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        self._map_rows()
        stored = self._index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))
        return np.asarray(stored, np.float32)

    def _map_rows(self) -> None:
        """IVF only, once: the table from row to place, 8 bytes a vector, which FAISS does not store."""
        import faiss

        with self._lock:
            inverted = faiss.try_extract_index_ivf(self._index)
            if inverted is not None and not self._is_mapped:
                inverted.make_direct_map()
            self._is_mapped = True

    def _check_giving_back(self, factory: str) -> None:
        try:
            self.vectors(np.zeros(1, np.int64))
        except RuntimeError as error:
            raise RetrievalError(_refused(factory, error)) from None


def cosines(vectors: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of [n, d] to a vector [d], in double precision; 0 where one has no length.

    Summed row by row rather than by a matrix product, whose last bits depend on the number of rows.
    """
    rows, other = vectors.astype(np.float64), vector.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1) * (other * other).sum())
    products = (rows * other).sum(axis=1)
    result: NDArray[np.float64] = np.zeros_like(products)
    np.divide(products, lengths, out=result, where=lengths > 0)
    return result


def _sample(vectors: NDArray[np.float32], num_centroids: int) -> NDArray[np.float32]:
    """Evenly spread rows of [n, d] to train that many centroids with."""
    count = max(MIN_TRAIN, TRAIN_PER_CENTROID * num_centroids)
    if count >= len(vectors):
        return np.ascontiguousarray(vectors, np.float32)
    return np.ascontiguousarray(vectors[np.arange(count) * len(vectors) // count], np.float32)


def _selector(rows: NDArray[np.int64], count: int) -> Any:
    """FAISS's form of a set of rows: a bit for each of the `count` rows."""
    import faiss

    made: Any = faiss  # its stubs want a pointer
    is_in = np.zeros(count, bool)
    is_in[rows] = True
    return made.IDSelectorBitmap(np.packbits(is_in, bitorder="little"))


def _keeping_to(index: Any, selector: Any) -> Any:
    """Search parameters that keep to a selector and look as far as the index is set to look."""
    import faiss

    made: Any = faiss  # its stubs lack these arguments
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return made.SearchParametersPreTransform(index_params=_keeping_to(index.index, selector))
    if isinstance(index, faiss.IndexRefine):
        base = _keeping_to(index.base_index, selector)
        return made.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=base)
    if isinstance(index, faiss.IndexIVF):
        return made.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
    if isinstance(index, faiss.IndexHNSW):
        return made.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
    return made.SearchParameters(sel=selector)


def vectors_to_train(index: Any) -> int:
    """Fewest vectors that FAISS can train this index with: a centroid needs a vector of its own."""
    return max([1, *(clusters for part in _parts(index) for clusters in _clusters(part))])


def _made(dimension: int, factory: str) -> Any:
    import faiss

    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise RetrievalError(_refused(factory, error)) from None
    for part in _parts(index):
        _calm(part)
    return index


def _calm(part: Any) -> None:
    """Turns off what only costs: a warning per cluster on stderr, and tables for a search not used here."""
    for clustering in (getattr(part, "cp", None), getattr(getattr(part, "pq", None), "cp", None)):
        if clustering is not None:
            clustering.min_points_per_centroid = 1
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False  # simulated annealing, over a second per subquantiser


def _parts(index: Any) -> list[Any]:
    """The index and whatever it is made of: transforms, coarse quantiser, storage, refinement."""
    import faiss

    index = faiss.downcast_index(index)
    found: list[Any] = [index]
    if isinstance(index, faiss.IndexPreTransform):
        chain: Any = index.chain  # a C++ vector, whatever the type stub says
        found += [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size())]
        found += _parts(index.index)
    if isinstance(index, faiss.IndexIVF):
        found += _parts(index.quantizer)
    if isinstance(index, faiss.IndexHNSW):
        found += _parts(index.storage)
    if isinstance(index, faiss.IndexRefine):
        found += _parts(index.base_index) + _parts(index.refine_index)
    return found


def _clusters(part: Any) -> list[int]:
    """Numbers of centroids that this part itself trains."""
    pq = getattr(part, "pq", None)
    return [int(getattr(part, "nlist", 1)), int(getattr(pq, "ksub", 1))]


def _check_training(index: Any, factory: str, count: int) -> None:
    needed = vectors_to_train(index)
    if count < needed:
        raise RetrievalError(
            f'The index kind "{factory}" needs at least {needed} chunks to train, but there are {count}; '
            'use "Flat", a smaller kind, or more documents.'
        )


def _widen_search(index: Any) -> None:
    """Sets how far searches look: the root of the number of lists for IVF, MIN_EF_SEARCH for HNSW."""
    import faiss

    for part in _parts(index):
        if isinstance(part, faiss.IndexIVF):
            part.nprobe = math.ceil(math.sqrt(part.nlist))
        if isinstance(part, faiss.IndexHNSW):
            part.hnsw.efSearch = max(MIN_EF_SEARCH, part.hnsw.efSearch)


def _refused(factory: str, error: RuntimeError) -> str:
    reason = str(error).strip().splitlines()[-1].rpartition("Error: ")[2].rstrip(" .")[-120:]
    return (
        f'FAISS does not take the index kind "{factory}" for these vectors ({reason}); '
        'use one like "Flat", "IVF64,Flat", "HNSW32" or "IVF64,PQ48".'
    )
