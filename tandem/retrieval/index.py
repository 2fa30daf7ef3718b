"""An index, open for reading: vectors in FAISS, and all else in the database that they come from."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from hashlib import blake2b, file_digest
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.store import PRIVATE_FILE, Filter, Snapshot

# ---- Which kind of FAISS index suits how many vectors ------------------------------------------------------


AUTO, FLAT = "auto", "Flat"
_LISTS = re.compile(r"IVF([1-9][0-9]{0,6}),Flat")

FLAT_BELOW = 100_000
"""Up to here exact search takes a few milliseconds, far less than a token."""

TRAIN_PER_LIST = 64
"""Vectors to train with, for each list; more add minutes and next to no recall."""

MIN_TRAIN = 65_536
"""Vectors to train with, at least, where there are that many."""


def resolve(factory: str, count: int) -> str:
    """The kind itself, or for "auto" that for `count` vectors. RetrievalError where there is no such kind."""
    if factory == AUTO:
        return FLAT if count < FLAT_BELOW else f"IVF{num_lists(count)},Flat"
    if factory != FLAT and not _LISTS.fullmatch(factory):
        raise RetrievalError(
            f'An index is of the kind "Flat" or "IVF<lists>,Flat", but {factory!r:.60} was asked for; use one like '
            '"IVF512,Flat", or "auto".'
        )
    return factory


def num_lists(count: int) -> int:
    """Lists of an IVF index: the power of two nearest to twice the root of the number of vectors."""
    return 1 << round(math.log2(2 * math.sqrt(count)))


def vectors_to_train(kind: str) -> int:
    """Fewest vectors that a kind can be trained with: a list needs a vector of its own. 0: it needs no training."""
    lists = _LISTS.fullmatch(kind)
    return int(lists[1]) if lists else 0


def training_rows(kind: str, count: int) -> NDArray[np.int64]:
    """Evenly spread rows of `count` vectors to train a kind with."""
    number = min(count, max(MIN_TRAIN, TRAIN_PER_LIST * vectors_to_train(kind)))
    return np.arange(number) * count // number


def check_can_train(kind: str, count: int) -> None:
    """RetrievalError for a kind that needs more than `count` vectors to train."""
    if count < (needed := vectors_to_train(kind)):
        raise RetrievalError(
            f'The index kind "{kind}" needs at least {needed} chunks to train, but there are {count}; use "Flat", a '
            "smaller kind, or more documents."
        )


# ---- The vectors of an index in FAISS ----------------------------------------------------------------------


FILE = "vectors-{}.faiss"
"""A trained index on disk, named by its checksum."""


class VectorIndex:
    """A FAISS index of unit vectors. Searches from several threads may overlap."""

    def __init__(self, index: Any, num_threads: int = 1) -> None:
        """index: a faiss.IndexFlat or IndexIVFFlat whose rows are numbered from 0 in the order of adding.

        An IVF search looks at twice the root of the number of lists. With that it finds 0.95 or more of the ten nearest
        among up to 10^6 vectors in clusters, reading 4 to 9 % of them (`benchmarks/retrieval.py`); the root alone finds
        0.93 among 10^6.
        """
        self.faiss_index = index
        self.is_trained = hasattr(index, "nlist")
        self._num_threads = num_threads
        if self.is_trained:
            index.nprobe = min(index.nlist, math.ceil(2 * math.sqrt(index.nlist)))
            index.make_direct_map()

    @classmethod
    def build(cls, vectors: NDArray[np.float32], kind: str, num_threads: int = 1) -> VectorIndex:
        """Trains (where the kind needs it) and fills an index of `vectors` [n, d], which have unit length.

        With one thread, equal vectors give an equal index.
        """
        import faiss

        faiss.omp_set_num_threads(num_threads)
        index: Any = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        if vectors_to_train(kind):
            index.cp.min_points_per_centroid = 1  # else a warning per list on stderr
            index.train(vectors[training_rows(kind, len(vectors))])
        index.add(vectors)
        return cls(index, num_threads)

    @classmethod
    def read(cls, path: Path, num_threads: int = 1) -> VectorIndex:
        """The index that `write` wrote. OSError, or RuntimeError from FAISS, if there is none that is whole."""
        import faiss

        if path.name != _name_of(path):
            raise OSError(f"{path} is not what was written")
        return cls(faiss.read_index(str(path)), num_threads)

    def write(self, directory: Path) -> str:
        """Writes the index to a file of its own, and returns its name. OSError if the disk refuses."""
        import faiss

        path = directory / FILE.format("new")
        path.unlink(missing_ok=True)
        path.touch(PRIVATE_FILE, exist_ok=False)
        try:
            faiss.write_index(self.faiss_index, str(path))
        except RuntimeError as error:
            raise OSError(str(error).strip().splitlines()[-1]) from None
        return path.rename(directory / _name_of(path)).name

    def __len__(self) -> int:
        """Number of vectors."""
        return int(self.faiss_index.ntotal)

    def edit(self, count: int, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Makes a trained index one of `count` vectors, of which `rows` have these [len(rows), d], and all others stay.
        Its lists are as good as they were for the vectors that it was trained with.
        """
        faiss: Any = import_module("faiss")
        index = self.faiss_index
        index.set_direct_map_type(faiss.DirectMap.NoMap)
        index.remove_ids(np.concatenate([rows, np.arange(count, len(self), dtype=np.int64)]))
        index.add_with_ids(np.ascontiguousarray(vectors, np.float32), rows)
        index.make_direct_map()

    def search(
        self, vector: NDArray[np.float32], k: int, among: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and inner products [<= k] of the nearest vectors to `vector` [d], best first.

        among: the only rows that may be found. A trained index may find fewer than k.
        """
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        parameters = None if among is None else self._keep_to(among)
        scores, rows = self.faiss_index.search(vector[None], min(k, len(self)), params=parameters)
        is_found = rows[0] >= 0
        return rows[0][is_found], scores[0][is_found]

    def _keep_to(self, rows: NDArray[np.int64]) -> Any:
        import faiss

        made: Any = faiss  # its stubs want a pointer
        is_in = np.zeros(len(self), bool)
        is_in[rows] = True
        selector = made.IDSelectorBitmap(np.packbits(is_in, bitorder="little"))
        if self.is_trained:
            return made.SearchParametersIVF(sel=selector, nprobe=self.faiss_index.nprobe)
        return made.SearchParameters(sel=selector)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors [len(rows), d] of some rows."""
        import faiss

        faiss.omp_set_num_threads(self._num_threads)
        stored = self.faiss_index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))
        return np.asarray(stored, np.float32)


def _name_of(path: Path) -> str:
    with path.open("rb") as file:
        return FILE.format(file_digest(file, lambda: blake2b(digest_size=16)).hexdigest())


def cosines(vectors: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of [n, d] to a vector [d], in double precision; 0 where one has no length.

    Row by row rather than by a matrix product, whose last bits depend on the number of rows.
    """
    rows, other = vectors.astype(np.float64, order="C"), vector.astype(np.float64, order="C")
    lengths = np.sqrt(np.vecdot(rows, rows) * np.vecdot(other, other))
    lengths[lengths == 0] = np.inf
    result: NDArray[np.float64] = np.vecdot(rows, other) / lengths
    return result


def check_number(k: int) -> None:
    """RetrievalError for a search that asks for no document."""
    if k < 1:
        raise RetrievalError(f"A search must ask for at least 1 document, but k is {k}; raise it.")


SCORE_ALL = 10_000
"""Rows that a filter may leave and that are all scored rather than searched: 15 MB at dimension 384."""


class Index(Snapshot):
    """An index, open for reading: the database as it was when opened, and the vectors that belong to it."""

    vector_index: VectorIndex

    @classmethod
    def open(cls, directory: Path, embedder_fingerprint: str | None = None, *, num_threads: int = 1) -> Index:
        """Opens an index after checking all that it holds, and the embedder if one is given.

        Raises RetrievalError, one sentence with the remedy, if anything does not fit.
        """
        index = cls(directory)
        try:
            manifest = index.manifest
            if embedder_fingerprint not in (None, manifest.embedder_fingerprint):
                raise RetrievalError(
                    f"An index must be searched with the embedder that built it, but {directory} was built with "
                    f"{manifest.embedder} ({manifest.embedder_fingerprint[:8]}) and the embedder here is "
                    f"{embedder_fingerprint[:8]}; use that embedder, or build the index again with `tandem index`."
                )
            index.verify()
            index.vector_index = index._open_vectors(num_threads)
        except BaseException:
            index.close()
            raise
        return index

    def _open_vectors(self, num_threads: int) -> VectorIndex:
        if self.manifest.trained:
            with suppress(OSError, RuntimeError):
                return VectorIndex.read(self.directory / self.manifest.trained, num_threads)
        return VectorIndex.build(self.stored_vectors(), self.manifest.factory, num_threads)

    def __len__(self) -> int:
        """Number of chunks."""
        return self.manifest.count

    def search(
        self, vector: NDArray[np.float32], k: int, filter: Filter | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and cosines [<= k] of the chunks nearest to a unit vector [d], best first.

        filter: metadata that each must have, {key: value or list of values}; then every row fits, and there
        are k unless fewer fit. Cosines are those of the stored vectors, whatever FAISS approximates while
        searching. RetrievalError if k < 1, for a vector of another length, or an unknown metadata key.
        """
        check_number(k)
        if vector.shape != (self.manifest.dimension,):
            raise RetrievalError(
                f"The index holds vectors of dimension {self.manifest.dimension}, but the query's has shape "
                f"{vector.shape}; use the embedder that built it."
            )
        if filter:
            rows = self._among(vector, k, self.select_rows(filter))
        else:
            rows, _ = self.vector_index.search(vector, k)
        stored = self.vectors(rows)
        if len(rows) > k:  # single precision says which are worth double
            best = np.argsort(-(stored @ vector), kind="stable")[:k]
            rows, stored = rows[best], stored[best]
        scores = cosines(stored, vector)
        best = np.lexsort((rows, -scores))
        return rows[best], scores[best]

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors [len(rows), d]."""
        return self.vector_index.vectors(rows)

    def document(self, row: int) -> Document:
        """The chunk of a row, with its id and metadata."""
        return self.documents([row])[0]

    def _among(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64]) -> NDArray[np.int64]:
        """The allowed rows nearest to `vector`, at least k if there are so many."""
        if len(allowed) > SCORE_ALL:
            rows, _ = self.vector_index.search(vector, k, allowed)
            if len(rows) >= k:
                return rows
        best = [allowed[:0]]
        for start in range(0, len(allowed), SCORE_ALL):
            rows = allowed[start : start + SCORE_ALL]
            best.append(rows[np.argsort(-cosines(self.vectors(rows), vector), kind="stable")[:k]])
        return np.concatenate(best)
