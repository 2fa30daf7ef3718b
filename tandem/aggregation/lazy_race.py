"""The winner, or the first few, of a race over the whole vocabulary, without a logarithm for each token.

A race is argmax_i p_i / E_i with E_i = -log u_i (Daliri, Musco and Suresh, arXiv 2408.07978; see `coupling`). Since
-log u >= 1 - u, a token's score is at most p / (1 - u): logarithms are taken only where that reaches the best scores.
Winners and scores are those of `coupling.race`, to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.randomness import Purpose, exponentials, uniforms
from tandem.aggregation.selection import largest

_SLACK = 1.0 - 1e-12
"""Far more than the rounding of a score and its bound."""
_PIECE = 1 << 15


def lazy_race(dense: NDArray[np.floating], *, seed: int, step: int) -> int:
    """argmax_i p_i / E_i, the coupled draw from a distribution; of equal scores the lowest id.

    dense: [vocab], >= 0, not all zero, not necessarily normalised.
    """
    ids, scores = best_scores(dense, 1, seed=seed, step=step)
    return int(ids[np.argmax(scores)])


def best_scores(
    dense: NDArray[np.floating], count: int, *, seed: int, step: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(ids [n] ascending, scores p_i / E_i [n]) of the `count` best, of equal scores the lowest ids.

    n = count, or fewer if fewer tokens have a probability above zero. dense: as for `lazy_race`.
    """
    bounds = _bounds(dense, seed, step)

    def best(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        scores = dense[ids] / exponentials(seed, Purpose.COUPLED, step, ids)
        if ids.size > count:
            places = largest(scores, count)
            ids, scores = ids[places], scores[places]
        positive = scores > 0.0
        return ids[positive], scores[positive]

    _, scores = best(largest(bounds, min(count, dense.size)))
    return best(np.flatnonzero(bounds >= scores.min() * _SLACK))


def _bounds(dense: NDArray[np.floating], seed: int, step: int) -> NDArray[np.float64]:
    """p / (1 - u) [vocab], not below the scores; in pieces that stay in the processor's cache."""
    bounds = np.empty(dense.size)
    for start in range(0, dense.size, _PIECE):
        piece = slice(start, min(start + _PIECE, dense.size))
        noise = uniforms(seed, Purpose.COUPLED, step, np.arange(piece.start, piece.stop))
        np.subtract(1.0, noise, out=noise)
        np.divide(dense[piece], noise, out=bounds[piece])
    return bounds
