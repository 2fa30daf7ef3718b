"""Which kind of FAISS index suits how many vectors, what it consists of, and how each part is set.

Flat reads every vector, so its time and memory grow with their number; IVF reads the lists nearest to the query;
IVF-PQ keeps a short code of each vector in memory and the vectors themselves on disk, where only the best few
are read. Measured by `benchmarks/retrieval.py`, explained in docs/explanation/retrieval.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
