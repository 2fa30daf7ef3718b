"""A distribution from a dense array, for tests."""

from __future__ import annotations

import numpy as np

from tandem.aggregation.distributions import Distribution


def from_dense(array: np.ndarray) -> Distribution:
    """The distribution proportional to array [vocab], without the tokens of probability zero."""
    ids = np.flatnonzero(array).astype(np.int64)
    values = np.asarray(array, dtype=np.float64)[ids]
    return Distribution(ids, values / values.sum())
