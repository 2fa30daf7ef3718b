"""QS's codec: the nearest distribution of the whole vocabulary with probabilities in multiples of 1 / l.

Layout: one whole number (`tandem.codecs.sets`), lowest byte first. index `non_zero`: counts of the tokens that have
one, which tokens, how many; index `paper`: the places of l stars among l + V - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.codecs import sets
from tandem.codecs.base import MAX_RESOLUTION, MAX_VOCAB, StatelessCodec, check_dense, check_whole, check_word

# ---- Distributions with probabilities b / l ----------------------------------------------------------------


Index = Literal["non_zero", "paper"]
NON_ZERO: Index = "non_zero"
PAPER: Index = "paper"
INDEXES: tuple[Index, ...] = (NON_ZERO, PAPER)


class Point(NamedTuple):
    """Counts on some tokens of the vocabulary."""

    ids: NDArray[np.int64]  # [n], ascending
    counts: NDArray[np.int64]  # [n], >= 0, of sum l

    def without_zeros(self) -> Point:
        """This distribution on the tokens that have a count."""
        if np.minimum.reduce(self.counts) > 0:
            return self
        positive = self.counts > 0
        return Point(self.ids[positive], self.counts[positive])

    def distribution(self) -> Distribution:
        """b / l on the tokens that have a count."""
        ids, counts = self.without_zeros()
        return Distribution(ids, counts / np.add.reduce(counts))


def point(dense: NDArray[np.floating], ids: NDArray[np.int64], resolution: int) -> Point:
    """The lattice point nearest to a distribution [vocab] restricted to `ids`, ascending, and renormalised."""
    return Point(ids, sets.quantise(dense[ids], resolution))


def push_non_zero(number: int, rounded: Point, vocab_size: int, most: int) -> int:
    """`number` joined by a point without its zeros: counts, then which tokens, then how many, at most `most`."""
    ids, counts = rounded.without_zeros()
    number = sets.push_counts(number, (counts - 1).tolist(), int(counts.sum()) - ids.size)
    number = sets.push_set(number, ids.tolist(), vocab_size)
    return sets.push(number, ids.size - 1, most)


def pop_non_zero(number: int, vocab_size: int, most: int, resolution: int) -> tuple[Point, int]:
    """(point, rest): undoes `push_non_zero`. most: <= resolution, vocab_size."""
    last, number = sets.pop(number, most)
    ids, number = sets.pop_set(number, last + 1, vocab_size)
    counts, number = sets.pop_counts(number, last + 1, resolution - last - 1)
    return _as_point(ids, [count + 1 for count in counts]), number


def push_support(number: int, rounded: Point, vocab_size: int) -> int:
    """`number` joined by a point with its zeros: counts, then which tokens (SQS Eq. 1, as one index)."""
    number = sets.push_counts(number, rounded.counts.tolist(), int(rounded.counts.sum()))
    return sets.push_set(number, rounded.ids.tolist(), vocab_size)


def pop_support(number: int, vocab_size: int, kept: int, resolution: int) -> tuple[Point, int]:
    """(point, rest): undoes `push_support`. kept: <= vocab_size."""
    ids, number = sets.pop_set(number, kept, vocab_size)
    counts, number = sets.pop_counts(number, kept, resolution)
    return _as_point(ids, counts), number


def push_whole(number: int, rounded: Point, vocab_size: int) -> int:
    """`number` joined by counts on the whole vocabulary (QS Eq. 6): the places of l stars among l + V - 1."""
    ids, counts = rounded.without_zeros()
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


DEFAULT_RESOLUTION = 100
"""Of SQS's experiments."""


@dataclass(frozen=True)
class Lattice(StatelessCodec):
    """Quantise-Sample-and-Verify (QS Eq. 5 and 6, arXiv 2507.00605): q rounded to multiples of 1 / resolution.

    With index `paper` every distribution of V tokens takes the same ceil(log2 C(l + V - 1, V - 1)) bits; `non_zero`
    takes ceil(log2 (l C(V, n) C(l - 1, n - 1))) for n tokens that keep a count, and decodes to the same distribution.
    """

    name: ClassVar[str] = "lattice"
    resolution: int = DEFAULT_RESOLUTION  # l, the sum of the counts, 1 to 4,096
    index: Index = NON_ZERO  # how a lattice point is numbered

    def __post_init__(self) -> None:
        """Raises ConfigError for a parameter out of range."""
        check_whole(self.name, "resolution", self.resolution, 1, MAX_RESOLUTION, DEFAULT_RESOLUTION)
        check_word(self.name, "index", self.index, INDEXES)

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        # Summed over n, C(V, n) C(l - 1, n - 1) is C(l + V - 1, l).
        return sets.max_bytes(sets.counts_bits(MAX_VOCAB, self.resolution) + self.resolution.bit_length())

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab], vocab <= 2**18; GenerationError if it is none."""
        check_dense(dense)
        rounded = point(dense, np.arange(dense.size), self.resolution)
        if self.index == NON_ZERO:
            return sets.to_bytes(push_non_zero(0, rounded, dense.size, min(self.resolution, dense.size)))
        return sets.to_bytes(push_whole(0, rounded, dense.size))

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution b / l in the bytes; ProtocolError if they are malformed."""
        number = sets.from_bytes(payload, self.max_bytes)
        rounded, rest = self._pop(number, vocab_size)
        sets.check_is_used_up(rest)
        return rounded.distribution()

    def _pop(self, number: int, vocab_size: int) -> tuple[Point, int]:
        if self.index == NON_ZERO:
            return pop_non_zero(number, vocab_size, min(self.resolution, vocab_size), self.resolution)
        return pop_whole(number, vocab_size, self.resolution)

    def fingerprint(self) -> str:
        """Name, version of the layout, and the parameters."""
        return f"{self.name}/1(resolution={self.resolution}, index={self.index})"
