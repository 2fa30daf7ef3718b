"""Codec `lattice`: the nearest distribution of the whole vocabulary with probabilities in multiples of 1 / l.

Layout: one whole number (`tandem.codecs.sets`), lowest byte first. index `non_zero`: counts of the tokens that have
one, which tokens, how many; index `paper`: the places of l stars among l + V - 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.codecs import bits, sets
from tandem.codecs.base import MAX_VOCAB, StatelessCodec, check_dense, register
from tandem.codecs.lattice_points import (
    INDEXES,
    NON_ZERO,
    Index,
    Point,
    point,
    pop_non_zero,
    pop_whole,
    push_non_zero,
    push_whole,
)
from tandem.codecs.parameters import MAX_RESOLUTION, check_whole, check_word

DEFAULT_RESOLUTION = 100
"""Of SQS's experiments."""


@register
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
        return sets.max_bytes(bits.lattice_bits(MAX_VOCAB, self.resolution) + self.resolution.bit_length())

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab], vocab <= 2**18; GenerationError if it is none."""
        check_dense(dense)
        found = point(dense, np.arange(dense.size), self.resolution)
        if self.index == NON_ZERO:
            return sets.to_bytes(push_non_zero(0, found, dense.size, min(self.resolution, dense.size)))
        return sets.to_bytes(push_whole(0, found, dense.size))

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution b / l in the bytes; ProtocolError if they are malformed."""
        number = sets.from_bytes(payload, self.max_bytes)
        found, rest = self._pop(number, vocab_size)
        sets.check_is_used_up(rest)
        return found.distribution()

    def _pop(self, number: int, vocab_size: int) -> tuple[Point, int]:
        if self.index == NON_ZERO:
            return pop_non_zero(number, vocab_size, min(self.resolution, vocab_size), self.resolution)
        return pop_whole(number, vocab_size, self.resolution)

    def fingerprint(self) -> str:
        """Name, version of the layout, and the parameters."""
        return f"{self.name}/1(resolution={self.resolution}, index={self.index})"
