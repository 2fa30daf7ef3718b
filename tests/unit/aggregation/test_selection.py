"""The largest of many numbers, against sorting all of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.aggregation.distributions import largest, most_probable


def slow_largest(values: NDArray[np.float64], limit: int) -> list[int]:
    """By value, of equals by place."""
    return sorted(sorted(range(values.size), key=lambda place: (-values[place], place))[:limit])


@pytest.mark.parametrize("num_levels", [1, 3, 40, 10**9])
def test_the_largest_are_those_that_sorting_finds(num_levels: int) -> None:
    rng = np.random.default_rng(num_levels)
    for size in (1, 2, 17, 256, 257, 300, 1025, 3000):
        values = rng.integers(num_levels, size=size) / num_levels
        for limit in {1, min(5, size), min(70, size), size // 2 + 1, size}:
            assert largest(values, limit).tolist() == slow_largest(values, limit)


def test_the_most_probable_of_some_tokens() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 20, 256, 257, 2000):
        dense = rng.integers(7, size=3000) / 7
        ids = np.sort(rng.choice(3000, size=size, replace=False))
        for limit in (1, 19, 300):
            kept = ids[slow_largest(dense[ids], limit)]
            assert most_probable(dense, ids, limit).tolist() == kept.tolist()
