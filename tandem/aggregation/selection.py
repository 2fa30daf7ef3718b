"""The largest of many numbers, of equals those of the lowest places, without sorting the vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEXT_THRESHOLD, _NUM_THRESHOLDS = 2.0**-2, 16


def most_probable(dense: NDArray[np.floating], ids: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """The `limit` most probable tokens of ascending `ids`, ascending; of equals the lowest ids."""
    if ids.size <= limit:
        return ids
    values = dense[ids]
    least = float(np.partition(values, ids.size - limit)[ids.size - limit])
    is_kept = values > least
    ties = np.flatnonzero(values == least)
    is_kept[ties[: limit - int(is_kept.sum())]] = True
    return ids[is_kept]


def largest(values: NDArray[np.floating], limit: int) -> NDArray[np.int64]:
    """Places of the `limit` largest values [n], ascending; of equals the lowest places. values: >= 0, limit <= n.

    As fast as a few comparisons per value unless most values are nearly equal.
    """
    threshold = float(values.max())
    for _ in range(_NUM_THRESHOLDS):
        threshold *= _NEXT_THRESHOLD
        places = np.flatnonzero(values >= threshold)
        if places.size >= limit:
            return most_probable(values, places, limit)
    return most_probable(values, np.arange(values.size), limit)
