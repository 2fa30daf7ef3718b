"""The largest of many numbers, of equals those of the lowest places, without sorting the vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GROUP, _FEW = 32, 256


def most_probable(dense: NDArray[np.floating], ids: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """The `limit` most probable tokens of ascending `ids`, ascending; of equals the lowest ids."""
    if ids.size <= limit:
        return ids
    values = dense[ids]
    if ids.size <= _FEW:  # then sorting takes less than several passes
        return ids[np.sort(np.argsort(-values, kind="stable")[:limit])]
    least = float(np.partition(values, ids.size - limit)[ids.size - limit])
    is_kept = values > least
    ties = np.flatnonzero(values == least)
    is_kept[ties[: limit - int(is_kept.sum())]] = True
    return ids[is_kept]


def largest(values: NDArray[np.floating], limit: int) -> NDArray[np.int64]:
    """Places of the `limit` largest values [n], ascending; of equals the lowest places. 1 <= limit <= n.

    As fast as two comparisons per value unless most values are nearly equal.
    """
    size = min(_GROUP, values.size // (4 * limit))  # of a group, whose values lie num_groups apart
    if size < 2 or values.size <= _FEW:
        return most_probable(values, np.arange(values.size), limit)
    num_groups = values.size // size
    maxima = np.maximum.reduce(values[: size * num_groups].reshape(size, num_groups))
    least = np.partition(maxima, num_groups - limit)[
        num_groups - limit
    ]  # so many values are as large, or more
    return most_probable(values, np.flatnonzero(values >= least), limit)
