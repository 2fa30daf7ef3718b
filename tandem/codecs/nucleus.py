"""The nucleus of a dense distribution: the fewest most probable tokens that together reach the mass top-p.

Never sorts the vocabulary: a threshold finds candidates, then the digits of their floating-point numbers, which order
like the numbers themselves, narrow them down, and only a short rest is sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SORT_LIMIT = 4096
"""At most this many values are sorted at once."""

_DIGIT_SHIFTS = (48, 32, 16, 0)  # 16 bits of a positive double at a time, the highest first
_FIRST_THRESHOLD = 2.0**-6  # of the largest probability; each further try goes down by 2**-6


def nucleus(dense: NDArray[np.floating], top_p: float) -> NDArray[np.int64]:
    """Ids of the nucleus, ascending, [n], n >= 1.

    Most probable first until their mass is >= top_p, including the token that crosses; of equals the lowest ids.

    dense: [vocab], >= 0, not all zero, not necessarily normalised. top_p: in (0, 1].
    """
    need = top_p * float(np.add.reduce(dense, dtype=np.float64))
    ids = _candidates(dense, need, top_p)
    values = np.asarray(dense[ids], dtype=np.float64)
    chosen = []
    for shift in _DIGIT_SHIFTS:
        if ids.size <= SORT_LIMIT or values.min() == values.max():
            break
        digits = (values.view(np.int64) >> shift) & 0xFFFF
        crossing, mass_above = _crossing(digits, values, need)
        chosen.append(ids[digits > crossing])
        need -= mass_above
        at_crossing = np.flatnonzero(digits == crossing)
        ids, values = ids[at_crossing], values[at_crossing]
    chosen.append(_fewest(ids, values, need))
    return np.sort(np.concatenate(chosen), kind="stable") if len(chosen) > 1 else chosen[0]


def _candidates(dense: NDArray[Any], need: float, top_p: float) -> NDArray[np.int64]:
    """All tokens above a threshold that leaves enough mass above it, ascending."""
    largest = float(np.maximum.reduce(dense))
    # What lies below (1 - p) total / vocab weighs less than 1 - p in all, so this threshold always suffices.
    lowest = need / top_p * (1.0 - top_p) / dense.size
    threshold = largest * _FIRST_THRESHOLD
    while threshold > lowest:
        ids = (dense >= threshold).nonzero()[0]
        if float(np.add.reduce(dense[ids], dtype=np.float64)) >= need:
            return ids
        threshold *= _FIRST_THRESHOLD
    return np.flatnonzero((dense >= lowest) & (dense > 0))


def _crossing(digits: NDArray[np.int64], values: NDArray[np.float64], need: float) -> tuple[int, float]:
    """(digit at which the mass, summed from the highest digit down, reaches `need`; mass above it)."""
    masses = np.bincount(digits, weights=values)
    from_top = np.cumsum(masses[::-1])[::-1]
    reached = np.flatnonzero(from_top >= need)
    crossing = int(reached[-1]) if reached.size else 0  # rounding may miss the last unit of p = 1
    return crossing, float(from_top[crossing + 1]) if crossing + 1 < from_top.size else 0.0


def _fewest(ids: NDArray[np.int64], values: NDArray[np.float64], need: float) -> NDArray[np.int64]:
    """The most probable of few, or of equally probable, tokens until their mass reaches `need`; ids ascending."""
    is_few = ids.size <= SORT_LIMIT
    order = (-values).argsort(kind="stable") if is_few else np.arange(ids.size)  # ids ascend among equals
    count = int(values[order].cumsum().searchsorted(need)) + 1
    chosen = ids[order[:count]]
    chosen.sort()
    return chosen
