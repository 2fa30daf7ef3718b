"""How sure a measured number is: Wilson's interval, McNemar's paired test, the bootstrap of a perplexity.

Plain numbers in and out; randomness comes in as a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959964
BOOTSTRAP_RUNS = 2000


def wilson(num_right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. count: at least 1."""
    share, z2 = num_right / count, Z_95 * Z_95
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, float]:
    """Questions that only the first got right, that only the second did, and the exact two-sided p-value.

    Both of one length, question by question. The p-value is that of a fair coin over the questions that differ.
    """
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    count, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(count, k) for k in range(fewer + 1)) / 2**count
    return only_first, only_second, min(1.0, 2 * tail)


def perplexity(losses: Sequence[NDArray[np.float64]]) -> float:
    """exp of the mean of -log p over all tokens of all windows. losses: per window [tokens]."""
    return _exp(sum(float(each.sum()) for each in losses) / sum(len(each) for each in losses))


def perplexity_interval(losses: Sequence[NDArray[np.float64]], *, seed: int = 0) -> tuple[float, float]:
    """95 % interval of a perplexity by bootstrap over windows, whose tokens belong together."""
    means = _resampled(np.array([each.sum() for each in losses]), losses, seed)
    low, high = np.percentile(means, [2.5, 97.5])
    return _exp(low), _exp(high)


def ratio_interval(
    ours: Sequence[NDArray[np.float64]], theirs: Sequence[NDArray[np.float64]], *, seed: int = 0
) -> tuple[float, float, float]:
    """Our perplexity over theirs on the same windows, and its 95 % interval by the paired bootstrap."""
    differences = np.array([float(a.sum() - b.sum()) for a, b in zip(ours, theirs, strict=True)])
    low, high = np.percentile(_resampled(differences, ours, seed), [2.5, 97.5])
    return perplexity(ours) / perplexity(theirs), _exp(low), _exp(high)


def _resampled(
    sums: NDArray[np.float64], losses: Sequence[NDArray[np.float64]], seed: int
) -> NDArray[np.float64]:
    """Mean per token of each resample of the windows, [BOOTSTRAP_RUNS]."""
    counts = np.array([len(each) for each in losses])
    chosen = np.random.default_rng(seed).integers(0, len(sums), (BOOTSTRAP_RUNS, len(sums)))
    return np.asarray(sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
