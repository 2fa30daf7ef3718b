"""Codec `top_k`: the K most probable tokens with 16-bit probabilities; the rest is dropped, or its mass is sent.

Layout: one whole number (`tandem.codecs.sets`), lowest byte first: counts of sum 65,535, one for each token and, with
rest `residual`, one for all other tokens together; then which K tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution, largest
from tandem.codecs import sets
from tandem.codecs.base import (
    MAX_KEPT,
    MAX_VOCAB,
    StatelessCodec,
    check_dense,
    check_fits,
    check_whole,
    check_word,
)

Rest = Literal["renormalise", "residual"]
RESTS: tuple[Rest, ...] = ("renormalise", "residual")
DEFAULT_K = 16
VALUE_SUM = 65_535
"""Sum of the counts: a probability has 16 bits."""


@dataclass(frozen=True)
class TopK(StatelessCodec):
    """Renormalised (SpecFed Eq. 5), or with the dropped mass spread evenly over the other tokens (SpecFed Eq. 6).

    In l1 the renormalised form is 2 eps away, eps being the dropped mass (Lemma 1); the residual at most
    2 eps (1 - u / c), u = eps / (V - K) and c the smallest kept probability (NOT in the paper). NOT in the paper:
    counts of a fixed sum instead of half floats, so that all machines get the same bits, at most
    (K + 1) / (4 * 65,535) away in total variation. Of equally probable tokens the lowest ids are kept.
    """

    name: ClassVar[str] = "top_k"
    k: int = DEFAULT_K  # K, 1 to 4,096
    rest: Rest = "renormalise"  # what becomes of the mass of the other tokens

    def __post_init__(self) -> None:
        """Raises ConfigError for a parameter out of range."""
        check_whole(self.name, "k", self.k, 1, MAX_KEPT, DEFAULT_K)
        check_word(self.name, "rest", self.rest, RESTS)

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        # One cell more than tokens may have a count, the rest.
        num_bits = sets.support_bits(MAX_VOCAB, self.k) + sets.counts_bits(self.k, VALUE_SUM + 1)
        return sets.max_bytes(num_bits)

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab], k <= vocab <= 2**18; GenerationError if it is none or too short."""
        check_dense(dense)
        check_fits(self.name, self.k, dense.size)
        ids = largest(dense, self.k)
        cells = np.asarray(dense[ids], dtype=np.float64)
        if self._has_rest(dense.size):
            dropped = max(0.0, float(dense.sum(dtype=np.float64)) - float(cells.sum()))
            cells = np.append(cells, dropped)
        number = sets.push_counts(0, sets.quantise(cells, VALUE_SUM).tolist(), VALUE_SUM)
        return sets.to_bytes(sets.push_set(number, ids.tolist(), dense.size))

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution in the bytes; ProtocolError if they are malformed."""
        number = sets.from_bytes(payload, self.max_bytes)
        sets.check_is_subset(self.k, vocab_size)
        ids, number = sets.pop_set(number, self.k, vocab_size)
        has_rest = self._has_rest(vocab_size)
        counts, number = sets.pop_counts(number, self.k + has_rest, VALUE_SUM)
        sets.check_is_used_up(number)
        rest = counts.pop() / VALUE_SUM if has_rest else 0.0
        return Distribution(np.array(ids), np.array(counts) / VALUE_SUM, rest, vocab_size)

    def _has_rest(self, vocab_size: int) -> bool:
        return self.rest == "residual" and self.k < vocab_size

    def fingerprint(self) -> str:
        """Name, version of the layout, and the parameters."""
        return f"{self.name}/1(k={self.k}, rest={self.rest})"
