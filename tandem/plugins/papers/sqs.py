"""The codecs of SQS (arXiv 2510.09942): K-SQS and C-SQS, as `codec.name = "k_sqs"` and `"c_sqs"`.

Layout: one whole number (`tandem.codecs.sets`), lowest byte first. index `non_zero`: as in the lattice of QS. index
`paper`: counts, zeros included, and which K tokens; of C-SQS K too, and where that is the whole vocabulary, as there.
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
    check_share,
    check_whole,
    check_word,
    malformed,
)
from tandem.plugins.papers.lattice import (
    DEFAULT_RESOLUTION,
    INDEXES,
    NON_ZERO,
    Index,
    Point,
    point,
    pop_non_zero,
    pop_support,
    pop_whole,
    push_non_zero,
    push_support,
    push_whole,
)

DEFAULT_K = 16


@dataclass(frozen=True)
class KSqs(StatelessCodec):
    """K-SQS (SQS Alg. 2): the top K, renormalised and rounded to multiples of 1 / resolution; then a token is drawn.

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
        return sets.max_bytes(_num_bits(self.k, self.resolution) + self.k.bit_length())

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab], k <= vocab <= 2**18; GenerationError if it is none or too short."""
        check_dense(dense)
        check_fits(self.name, self.k, dense.size)
        ids = largest(dense, self.k)
        rounded = point(dense, ids, self.resolution)
        if self.index == NON_ZERO:
            return sets.to_bytes(push_non_zero(0, rounded, dense.size, self._most))
        return sets.to_bytes(push_support(0, rounded, dense.size))

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution b / l in the bytes; ProtocolError if they are malformed."""
        number = sets.from_bytes(payload, self.max_bytes)
        sets.check_is_subset(self.k, vocab_size)
        if self.index == NON_ZERO:
            rounded, rest = pop_non_zero(number, vocab_size, self._most, self.resolution)
        else:
            rounded, rest = pop_support(number, vocab_size, self.k, self.resolution)
        sets.check_is_used_up(rest)
        return rounded.distribution()

    @property
    def _most(self) -> int:
        """Most tokens that can have a count."""
        return min(self.k, self.resolution)

    def fingerprint(self) -> str:
        """Name, version of the layout, and the parameters."""
        return f"{self.name}/1(k={self.k}, resolution={self.resolution}, index={self.index})"


@dataclass(frozen=True)
class CSqs:
    """C-SQS (SQS Alg. 1): keeps q(x) >= beta, then beta <- beta - eta (a - alpha).

    a is the mass that was really dropped, of q before it is quantised. If no token reaches beta, the most probable one
    is kept. Summed up, mean(a) = alpha + (beta_1 - beta_(T+1)) / (eta T) over T distributions, and since beta >= -eta
    (1 - alpha) always, mean(a) <= alpha + (beta_1 + eta (1 - alpha)) / (eta T), whatever the distributions are.

    NOT in the paper: the constant of that bound (SQS Eq. 9 is 100 times weaker at their settings); `beta_max`,
    above which the threshold does not rise, since else a run of certain tokens winds it up without limit (0: no limit,
    as in the paper); a support of more than 4,096 tokens becomes the whole vocabulary, which drops nothing and is
    cheaper to send; index `non_zero`. The threshold is updated once for each prefix that is encoded, so it is a
    function of the committed prefix where each of its beginnings was encoded (SQS Alg. 1, line 12, which leaves out
    rejected positions, misses alpha by 16 %).
    """

    name: ClassVar[str] = "c_sqs"
    alpha: float = 0.0005  # mass to drop on average, in [0, 1]
    eta: float = 0.001  # step size of the threshold, in (0, 1]
    beta_1: float = 0.01  # first threshold, in [0, 1]
    beta_max: float = 0.05  # highest threshold, at least beta_1; 0: none, as in the paper
    resolution: int = DEFAULT_RESOLUTION  # l, the sum of the counts, 1 to 4,096
    index: Index = NON_ZERO  # how a lattice point is numbered

    def __post_init__(self) -> None:
        """Raises ConfigError for a parameter out of range."""
        check_share(self.name, "alpha", self.alpha, 0.0, 1.0, 0.0005)
        check_share(self.name, "eta", self.eta, 1e-12, 1.0, 0.001)
        check_share(self.name, "beta_1", self.beta_1, 0.0, 1.0, 0.01)
        if self.beta_max != 0:
            check_share(self.name, "beta_max", self.beta_max, self.beta_1, 1.0, 0.05)
        check_whole(self.name, "resolution", self.resolution, 1, MAX_RESOLUTION, DEFAULT_RESOLUTION)
        check_word(self.name, "index", self.index, INDEXES)
        for name in ("alpha", "eta", "beta_1", "beta_max"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        whole = sets.counts_bits(MAX_VOCAB, self.resolution) + self.resolution.bit_length()
        if self.index == NON_ZERO:
            return sets.max_bytes(whole)
        size_bits = MAX_VOCAB.bit_length()  # how many tokens are kept (SQS Eq. 5)
        return sets.max_bytes(max(whole, _num_bits(MAX_KEPT, self.resolution)) + size_bits)

    def open(self) -> CSqsSession:
        """The threshold beta_1."""
        return CSqsSession(self, self.beta_1)

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution b / l in the bytes; ProtocolError if they are malformed. Needs no threshold."""
        number = sets.from_bytes(payload, self.max_bytes)
        if self.index == NON_ZERO:
            most = min(self.resolution, vocab_size)
            rounded, rest = pop_non_zero(number, vocab_size, most, self.resolution)
        else:
            rounded, rest = self._pop_paper(number, vocab_size)
        sets.check_is_used_up(rest)
        return rounded.distribution()

    def pack(self, rounded: Point, vocab_size: int) -> bytes:
        """The bytes of a lattice point on the tokens that were kept."""
        if self.index == NON_ZERO:
            return sets.to_bytes(push_non_zero(0, rounded, vocab_size, min(self.resolution, vocab_size)))
        push_form = push_whole if rounded.ids.size == vocab_size else push_support
        return sets.to_bytes(sets.push(push_form(0, rounded, vocab_size), rounded.ids.size - 1, vocab_size))

    def _pop_paper(self, number: int, vocab_size: int) -> tuple[Point, int]:
        last, number = sets.pop(number, vocab_size)
        if last + 1 == vocab_size:
            return pop_whole(number, vocab_size, self.resolution)
        if last + 1 > MAX_KEPT:
            raise malformed(f"must keep at most {MAX_KEPT} tokens or all {vocab_size}, got {last + 1}")
        return pop_support(number, vocab_size, last + 1, self.resolution)

    def fingerprint(self) -> str:
        """Name, version of the layout, and the parameters to the last bit."""
        update = f"alpha={self.alpha!r}, eta={self.eta!r}, beta_1={self.beta_1!r}, beta_max={self.beta_max!r}"
        return f"{self.name}/1({update}, resolution={self.resolution}, index={self.index})"


@dataclass(frozen=True, slots=True)
class CSqsSession:
    """The threshold with which one more distribution is encoded; a value, so that it rolls back with the prefix."""

    codec: CSqs
    beta: float

    def encode(self, dense: NDArray[np.floating]) -> tuple[bytes, CSqsSession]:
        """(bytes, state with the next threshold) of a distribution [vocab]; GenerationError if it is none."""
        ids, dropped = self.support(dense)
        payload = self.codec.pack(point(dense, ids, self.codec.resolution), dense.size)
        return payload, CSqsSession(self.codec, self.next_beta(dropped))

    def support(self, dense: NDArray[np.floating]) -> tuple[NDArray[np.int64], float]:
        """(ids kept, ascending; mass dropped) of a distribution [vocab]: SQS Eq. 6."""
        largest, total = check_dense(dense), float(dense.sum(dtype=np.float64))
        if self.beta * total > largest:
            ids = np.array([np.argmax(dense)])
        else:
            ids = np.flatnonzero(dense >= self.beta * total)
        if ids.size > MAX_KEPT or ids.size == dense.size:
            return np.arange(dense.size), 0.0
        return ids, max(0.0, 1.0 - float(dense[ids].sum(dtype=np.float64)) / total)

    def next_beta(self, dropped: float) -> float:
        """beta - eta (a - alpha), at most beta_max (SQS Eq. 8)."""
        beta = self.beta - self.codec.eta * (dropped - self.codec.alpha)
        return min(beta, self.codec.beta_max) if self.codec.beta_max else beta


def _num_bits(kept: int, resolution: int) -> int:
    """The bits of a support and its counts, each rounded up (SQS Eq. 1), in the largest vocabulary."""
    return sets.support_bits(MAX_VOCAB, kept) + sets.counts_bits(kept, resolution)
