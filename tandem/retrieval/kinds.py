"""Which kind of FAISS index suits how many vectors.

Flat reads every vector, so its time and memory grow with their number; IVF reads the lists nearest to the query;
IVF-PQ keeps a short code of each vector in memory and the vectors themselves on disk, where only the best few
are read. Measured by `benchmarks/retrieval.py`, explained in docs/retrieval.md. Knows numbers only.
"""

from __future__ import annotations

import math

AUTO = "auto"

FLAT_BELOW = 50_000
"""Up to here exact search takes a few milliseconds, far less than a token."""

IVF_BELOW = 1_000_000
"""Up to here the vectors themselves fit into memory: 1.5 GB at dimension 384."""

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
