"""Codec `k_sqs`: the K most probable tokens, renormalised and rounded to multiples of 1 / l.

Layout: one whole number (`tandem.codecs.sets`), lowest byte first. index `paper`: counts, zeros included, and which K
tokens; index `non_zero`: as in `tandem.codecs.lattice`, with n <= K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution, largest
from tandem.codecs import sets
from tandem.codecs.base import (
    MAX_KEPT,
    MAX_RESOLUTION,
    MAX_VOCAB,
    StatelessCodec,
    check_dense,
    check_fits,
    check_whole,
    check_word,
    register,
)
from tandem.codecs.lattice import (
    DEFAULT_RESOLUTION,
    INDEXES,
    NON_ZERO,
    Index,
    point,
    pop_non_zero,
    pop_support,
    push_non_zero,
    push_support,
)

DEFAULT_K = 16


@register
@dataclass(frozen=True)
class KSqs(StatelessCodec):
    """K-SQS (SQS Alg. 2, arXiv 2510.09942): sparsify to the top K, then quantise, then sample.

    With index `paper` every distribution takes ceil(log2 (C(V, K) C(l + K - 1, K - 1))) bits: 267 for K = 16, l = 100,
    V = 50,257. NOT in the paper: the top K are renormalised before they are quantised (without which the counts
    do not sum to l); of equally probable tokens the lowest ids are kept.
    """

    name: ClassVar[str] = "k_sqs"
    k: int = DEFAULT_K  # K, tokens of the support, 1 to 4,096
    resolution: int = DEFAULT_RESOLUTION  # l, the sum of the counts, 1 to 4,096
    index: Index = NON_ZERO  # how a lattice point is numbered

    def __post_init__(self) -> None:
        """Raises ConfigError for a parameter out of range."""
        check_whole(self.name, "k", self.k, 1, MAX_KEPT, DEFAULT_K)
        check_whole(self.name, "resolution", self.resolution, 1, MAX_RESOLUTION, DEFAULT_RESOLUTION)
        check_word(self.name, "index", self.index, INDEXES)

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        return sets.max_bytes(sets.k_sqs_bits(MAX_VOCAB, self.k, self.resolution) + self.k.bit_length())

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab], k <= vocab <= 2**18; GenerationError if it is none or too short."""
        check_dense(dense)
        check_fits(self.name, self.k, dense.size)
        ids = largest(dense, self.k)
        found = point(dense, ids, self.resolution)
        if self.index == NON_ZERO:
            return sets.to_bytes(push_non_zero(0, found, dense.size, self._most))
        return sets.to_bytes(push_support(0, found, dense.size))

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution b / l in the bytes; ProtocolError if they are malformed."""
        number = sets.from_bytes(payload, self.max_bytes)
        sets.check_is_subset(self.k, vocab_size)
        if self.index == NON_ZERO:
            found, rest = pop_non_zero(number, vocab_size, self._most, self.resolution)
        else:
            found, rest = pop_support(number, vocab_size, self.k, self.resolution)
        sets.check_is_used_up(rest)
        return found.distribution()

    @property
    def _most(self) -> int:
        """Most tokens that can have a count."""
        return min(self.k, self.resolution)

    def fingerprint(self) -> str:
        """Name, version of the layout, and the parameters."""
        return f"{self.name}/1(k={self.k}, resolution={self.resolution}, index={self.index})"
