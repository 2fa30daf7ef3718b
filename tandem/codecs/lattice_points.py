"""Distributions with probabilities b / l: the nearest one to a given distribution, and two ways to write it down.

Counts b >= 0 of sum l are a point of a lattice (QS Eq. 5; Reznik, DCC 2011). `PAPER` is the index of
the papers, which pays for tokens whose count is 0. `NON_ZERO` says which n tokens have a count and how large these are:
the same distribution in fewer bits. NOT in the papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.selection import largest
from tandem.codecs import sets

Index = Literal["non_zero", "paper"]
NON_ZERO: Index = "non_zero"
PAPER: Index = "paper"
INDEXES: tuple[Index, ...] = (NON_ZERO, PAPER)
_SMALL = 1e-290


class Point(NamedTuple):
    """Counts on some tokens of the vocabulary."""

    ids: NDArray[np.int64]  # [n], ascending
    counts: NDArray[np.int64]  # [n], >= 0, of sum l

    def without_zeros(self) -> Point:
        """The same distribution on the tokens that have a count."""
        if np.minimum.reduce(self.counts) > 0:
            return self
        positive = self.counts > 0
        return Point(self.ids[positive], self.counts[positive])

    def distribution(self) -> Distribution:
        """b / l on the tokens that have a count."""
        ids, counts = self.without_zeros()
        return Distribution(ids, counts / np.add.reduce(counts))


def quantise(probabilities: NDArray[np.floating], resolution: int) -> NDArray[np.int64]:
    """Counts b [n] of sum `resolution` nearest to l q in L1, L2 and largest difference (QS Eq. 5; SQS Alg. 2).

    probabilities: [n], >= 0, not all zero. NOT in the papers: they are normalised first, without which the counts of a
    truncated distribution do not sum to l. b = floor(l q + 1/2), then the |sum b - l| largest errors on one side are
    taken back, of equal ones that of the lowest id. Total variation <= floor(n/2) ceil(n/2) / (n l).
    """
    scaled = probabilities.astype(np.float64)
    peak = np.maximum.reduce(scaled)
    if not _SMALL < peak < 1 / _SMALL:
        scaled /= peak  # else the sum or the factor below may be infinite
    scaled *= resolution / np.add.reduce(scaled)
    counts = scaled + 0.5
    np.floor(counts, out=counts)
    excess = int(np.add.reduce(counts)) - resolution
    if excess:
        sign = 1.0 if excess > 0 else -1.0
        error = np.subtract(counts, scaled, out=scaled)
        error *= sign
        counts[largest(error, abs(excess))] -= sign
    return counts.astype(np.int64)


def point(dense: NDArray[np.floating], ids: NDArray[np.int64], resolution: int) -> Point:
    """The lattice point nearest to a distribution [vocab] restricted to `ids`, ascending, and renormalised."""
    return Point(ids, quantise(dense[ids], resolution))


def push_non_zero(number: int, found: Point, vocab_size: int, most: int) -> int:
    """`number` joined by a point without its zeros: counts, then which tokens, then how many, at most `most`."""
    ids, counts = found.without_zeros()
    number = sets.push_counts(number, (counts - 1).tolist(), int(counts.sum()) - ids.size)
    number = sets.push_set(number, ids.tolist(), vocab_size)
    return sets.push(number, ids.size - 1, most)


def pop_non_zero(number: int, vocab_size: int, most: int, resolution: int) -> tuple[Point, int]:
    """(point, rest): undoes `push_non_zero`. most: <= resolution, vocab_size."""
    last, number = sets.pop(number, most)
    ids, number = sets.pop_set(number, last + 1, vocab_size)
    counts, number = sets.pop_counts(number, last + 1, resolution - last - 1)
    return _as_point(ids, [count + 1 for count in counts]), number


def push_support(number: int, found: Point, vocab_size: int) -> int:
    """`number` joined by a point with its zeros: counts, then which tokens (SQS Eq. 1, as one index)."""
    number = sets.push_counts(number, found.counts.tolist(), int(found.counts.sum()))
    return sets.push_set(number, found.ids.tolist(), vocab_size)


def pop_support(number: int, vocab_size: int, kept: int, resolution: int) -> tuple[Point, int]:
    """(point, rest): undoes `push_support`. kept: <= vocab_size."""
    ids, number = sets.pop_set(number, kept, vocab_size)
    counts, number = sets.pop_counts(number, kept, resolution)
    return _as_point(ids, counts), number


def push_whole(number: int, found: Point, vocab_size: int) -> int:
    """`number` joined by counts on the whole vocabulary (QS Eq. 6): the places of l stars among l + V - 1."""
    ids, counts = found.without_zeros()
    stars = np.repeat(ids, counts)
    stars += np.arange(stars.size)
    return sets.push_set(number, stars.tolist(), stars.size + vocab_size - 1)


def pop_whole(number: int, vocab_size: int, resolution: int) -> tuple[Point, int]:
    """(point without zeros, rest): undoes `push_whole`."""
    stars, number = sets.pop_set(number, resolution, resolution + vocab_size - 1)
    ids, counts = np.unique(np.array(stars, dtype=np.int64) - np.arange(resolution), return_counts=True)
    return Point(ids, counts), number


def _as_point(ids: Sequence[int], counts: Sequence[int]) -> Point:
    return Point(np.array(ids, dtype=np.int64), np.array(counts, dtype=np.int64))
