"""An index, open for reading: vectors in FAISS, chunks in the database, and the manifest that binds them."""

from __future__ import annotations

import errno
import math
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.store import Filter, Manifest, Snapshot, damaged, read_manifest

# ---- Which kind of FAISS index suits how many vectors, what it consists of ---------------------------------


AUTO = "auto"

FLAT_BELOW = 50_000
"""Up to here exact search takes a few milliseconds, far less than a token."""

IVF_BELOW = 1_000_000
"""Up to here the vectors themselves fit into memory: 1.5 GB at dimension 384."""

MIN_EF_SEARCH = 64
"""Candidates that an HNSW search keeps, at least."""

_CODE_SHARE = 8
"""Vector components behind each byte of a code."""


def resolve(factory: str, count: int, dimension: int) -> str:
    """The factory string itself, or for "auto" that of the kind for `count` vectors of `dimension`."""
    if factory != AUTO:
        return factory
    if count < FLAT_BELOW:
        return "Flat"
    if count < IVF_BELOW:
        return f"IVF{num_lists(count)},Flat"
    size = code_bytes(dimension)
    code = f"PQ{size}" if 2 * _CODE_SHARE * size >= dimension else "SQ8"  # a dimension with few divisors
    return f"IVF{num_lists(count)},{code}"


def num_lists(count: int) -> int:
    """Lists of an IVF index: the power of two nearest to twice the root of the number of vectors."""
    return 1 << round(math.log2(2 * math.sqrt(count)))


def code_bytes(dimension: int) -> int:
    """Length of a PQ code, which must divide the dimension: about an eighth of it."""
    return max(size for size in range(1, dimension // _CODE_SHARE + 2) if dimension % size == 0)


def vectors_to_train(index: Any) -> int:
    """Fewest vectors that FAISS can train this index with: a centroid needs a vector of its own."""
    lists = (int(getattr(part, "nlist", 1)) for part in parts(index))
    codes = (int(getattr(getattr(part, "pq", None), "ksub", 1)) for part in parts(index))
    return max(1, *lists, *codes)


def can_train(factory: str, count: int, dimension: int) -> bool:
    """Whether so many vectors suffice to train an index of a kind; of a kind that FAISS refuses, `build` says more."""
    import faiss

    try:
        return count >= vectors_to_train(faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT))
    except RuntimeError:
        return True


def keeping_to(index: Any, rows: NDArray[np.int64]) -> Any:
    """Search parameters that keep to the given rows and look as far as the index is set to look."""
    import faiss

    made: Any = faiss  # its stubs want a pointer
    is_in = np.zeros(int(index.ntotal), bool)
    is_in[rows] = True
    return _parameters(index, made.IDSelectorBitmap(np.packbits(is_in, bitorder="little")))


def _parameters(index: Any, selector: Any) -> Any:
    """Those of an index and, inside them, of what it wraps."""
    import faiss

    made: Any = faiss  # its stubs lack these arguments
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return made.SearchParametersPreTransform(index_params=_parameters(index.index, selector))
    if isinstance(index, faiss.IndexRefine):
        base = _parameters(index.base_index, selector)
        return made.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=base)
    if isinstance(index, faiss.IndexIVF):
        return made.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
    if isinstance(index, faiss.IndexHNSW):
        return made.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
    return made.SearchParameters(sel=selector)


def parts(index: Any) -> list[Any]:
    """The index and whatever it is made of: transforms, coarse quantiser, storage, refinement."""
    import faiss

    index = faiss.downcast_index(index)
    members: list[Any] = [index]
    if isinstance(index, faiss.IndexPreTransform):
        chain: Any = index.chain  # a C++ vector, whatever the type stub says
        members += [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size())]
        members += parts(index.index)
    if isinstance(index, faiss.IndexIVF):
        members += parts(index.quantizer)
    if isinstance(index, faiss.IndexHNSW):
        members += parts(index.storage)
    if isinstance(index, faiss.IndexRefine):
        members += parts(index.base_index) + parts(index.refine_index)
    return members


def calm(part: Any) -> None:
    """Turns off what only costs: a warning per cluster on stderr, and tables for a search not used here."""
    for clustering in (getattr(part, "cp", None), getattr(getattr(part, "pq", None), "cp", None)):
        if clustering is not None:
            clustering.min_points_per_centroid = 1
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False  # simulated annealing, over a second per subquantiser


def widen_search(index: Any) -> None:
    """Sets how far searches look: twice the root of the number of lists for IVF, MIN_EF_SEARCH for HNSW.

    With that IVF finds 0.95 or more of the ten nearest among up to 10^6 vectors in clusters, reading 4 to 9 % of
    them (`benchmarks/retrieval.py`); the root alone finds 0.93 among 10^6.
    """
    import faiss

    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            part.nprobe = min(part.nlist, math.ceil(2 * math.sqrt(part.nlist)))
        if isinstance(part, faiss.IndexHNSW):
            part.hnsw.efSearch = max(MIN_EF_SEARCH, part.hnsw.efSearch)


# ---- The vectors of an index in FAISS ----------------------------------------------------------------------


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
            if len(vectors) < (needed := vectors_to_train(index)):
                raise RetrievalError(
                    f'The index kind "{factory}" needs at least {needed} chunks to train, but there are '
                    f'{len(vectors)}; use "Flat", a smaller kind, or more documents.'
                )
            index.train(training_sample(vectors, needed))
            for start in range(0, len(vectors), ADD_AT_ONCE):  # in memory, whether or not `vectors` is
                index.add(np.ascontiguousarray(vectors[start : start + ADD_AT_ONCE], np.float32))
            built = cls(index, num_threads)
            built.vectors(np.zeros(1, np.int64))  # some kinds cannot
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].rpartition("Error: ")[2].rstrip(" .")[-120:]
            raise RetrievalError(
                f'FAISS does not take the index kind "{factory}" for these vectors ({reason}); '
                'use one like "Flat", "IVF64,Flat", "HNSW32" or "IVF64,PQ48".'
            ) from None
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

    @property
    def is_editable(self) -> bool:
        """Whether `edit` can change single vectors of it."""
        import faiss

        return isinstance(faiss.downcast_index(self.faiss_index), (faiss.IndexFlat, faiss.IndexIVFFlat))

    def edit(self, count: int, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Makes it an index of `count` vectors, of which the ascending `rows` have these [len(rows), d], and all others
        stay. What an IVF kind was trained with stays, too: lists are as good as they were for the vectors then.
        """
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        library: Any = faiss  # its stubs lack much of it
        index: Any = library.downcast_index(self.faiss_index)
        vectors = np.ascontiguousarray(vectors, np.float32)
        beyond = np.arange(count, len(self), dtype=np.int64)
        if isinstance(index, library.IndexIVFFlat):
            index.set_direct_map_type(library.DirectMap.NoMap)
            index.remove_ids(np.concatenate([rows, beyond]))
            if len(rows):
                index.add_with_ids(vectors, rows)
            self._is_mapped = False
            return
        if len(beyond):
            index.remove_ids(beyond)  # what follows moves up, and nothing does
        is_there = rows < len(self)
        stored = library.rev_swig_ptr(index.get_xb(), len(self) * index.d).reshape(len(self), index.d)
        stored[rows[is_there]] = vectors[is_there]
        if not is_there.all():
            index.add(vectors[~is_there])

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

        Raises RetrievalError, one sentence with the remedy, if anything does not fit.
        """
        for _ in range(_ATTEMPTS):
            index = cls(directory)
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
        """The allowed rows nearest to `vector`, at least k if there are so many."""
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
