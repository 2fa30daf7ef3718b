"""The codecs of the papers: `lattice` of QS (arXiv 2507.00605), `k_sqs` and `c_sqs` of SQS (arXiv 2510.09942), and
`top_k` of SpecFed.

A payload is one whole number (`tandem.codecs.sets`), lowest byte first. Of `lattice`: index `non_zero`: counts of the
tokens that have one, which tokens, how many; index `paper`: the places of l stars among l + V - 1. Of `k_sqs` and
`c_sqs`: index `non_zero` as there; index `paper`: counts, zeros included, and which K tokens; of C-SQS K too, and where
that is the whole vocabulary, as of `lattice`. Of `top_k`: counts of sum 65,535, one for each token and, with rest
`residual`, one for all other tokens together; then which K tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

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
        """Bytes of a distribution [vocab], vocab <= 2**19; GenerationError if it is none."""
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
        """Bytes of a distribution [vocab], k <= vocab <= 2**19; GenerationError if it is none or too short."""
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


Rest = Literal["renormalise", "residual"]
RESTS: tuple[Rest, ...] = ("renormalise", "residual")
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
        """Bytes of a distribution [vocab], k <= vocab <= 2**19; GenerationError if it is none or too short."""
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
