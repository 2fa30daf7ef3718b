"""The winner, or the first few, of a race over the whole vocabulary, without the whole noise of each token.

A race is argmax_i p_i / E_i with E_i = -log u_i (Daliri, Musco and Suresh, arXiv 2408.07978; see `coupling`). Scores of
the most probable tokens set a mark. Since -log u >= 1 - u, only a token with p / (1 - u) above it can do better, and of
nearly all others the first 23 bits of u tell that they cannot. Logarithms are taken of the rest. Winners and scores are
those of `coupling.race`, to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.randomness import MANY, Purpose, coarse_uniforms, exponentials
from tandem.aggregation.selection import largest

_FIRST = 64
"""Tokens whose scores are taken at least, to set the mark."""
_FEW = 1024
"""Of so many tokens all scores are taken: the mark costs more than it saves."""
_ONE = np.uint32(0x3F800000)  # the bits of 1.0 in float32; those of a number in [0, 1) go behind them
_REACH = np.float32(2.0 - 2.0**-20)
"""What 1 + u + p / mark of a token that reaches the mark is at least, in float32: below 2 by more than all rounding,
u's first 23 bits included."""


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

    def best(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        scores = dense[ids] / exponentials(seed, Purpose.COUPLED, step, ids)
        if ids.size > count:
            places = largest(scores, count)
            ids, scores = ids[places], scores[places]
        positive = scores > 0.0
        return ids[positive], scores[positive]

    if dense.size <= max(_FEW, count):
        return best(np.arange(dense.size))
    found = best(largest(dense, min(max(_FIRST, 4 * count), dense.size)))[1]
    mark = float(found.min()) if found.size == count else 0.0
    return best(_rivals(dense, mark, seed, step))


def _rivals(dense: NDArray[np.floating], mark: float, seed: int, step: int) -> NDArray[np.int64]:
    """Ids of all tokens with a score of at least `mark` and above zero, and of a few others; ascending.

    In pieces that stay in the processor's cache. With a mark so low that its inverse is infinite, of all with p > 0.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scale = np.divide(1.0, mark)
        found = []
        for start in range(0, dense.size, MANY):
            piece = dense[start : start + MANY]
            bits = coarse_uniforms(seed, Purpose.COUPLED, step, start, piece.size)
            bits |= _ONE
            reach = bits.view(np.float32)  # 1 + u, cut off
            reach += np.multiply(piece, scale, dtype=dense.dtype).astype(np.float32, copy=False)
            found.append(np.flatnonzero(reach >= _REACH) + start)
    return np.concatenate(found)
