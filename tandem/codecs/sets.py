"""Sets and counts inside one whole number, at the size of the combinatorial bound.

"Bits back": a set has no order, so the order in which its members are written can say something else. It repeats what
the number held before, which is thereby made smaller by log2(k!) bits; a member is written as its rank among the
numbers not yet taken. So every number is some set and some rest, no set can name a member twice, and k of `universe`
cost log2 C(universe, k) bits; only where the number is still small a part of log2 k bits is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import largest
from tandem.codecs.base import malformed


def push(number: int, value: int, count: int) -> int:
    """`number` joined by one of `count` equally likely values, 0 <= value < count."""
    return number * count + value


def pop(number: int, count: int) -> tuple[int, int]:
    """(value, rest): undoes `push`."""
    rest, value = divmod(number, count)
    return value, rest


def push_set(number: int, members: Sequence[int], universe: int) -> int:
    """`number` joined by a set. members: strictly ascending, each in [0, universe)."""
    remaining = _smaller_half(members, universe)
    for size in range(len(remaining), 0, -1):
        number, index = divmod(number, size)
        number = number * (universe - size + 1) + remaining.pop(index) - index
    return number


def pop_set(number: int, size: int, universe: int) -> tuple[list[int], int]:
    """(ascending members, rest): undoes `push_set`. 0 <= size <= universe."""
    members: list[int] = []
    for count in range(min(size, universe - size)):
        number, rank = divmod(number, universe - count)
        index, high = (
            0,
            count,
        )  # bisection: how many members lie below the number of that rank among all others
        while index < high:
            middle = (index + high) // 2
            if members[middle] - middle <= rank:
                index = middle + 1
            else:
                high = middle
        members.insert(index, rank + index)
        number = number * (count + 1) + index
    return (_complement(members, universe) if 2 * size > universe else members), number


def push_counts(number: int, counts: Sequence[int], total: int) -> int:
    """`number` joined by counts >= 0 of that total, [cells]: the bars among `total` stars (Reznik, DCC 2011)."""
    bars, position = [], 0
    for cell, count in enumerate(counts[:-1]):
        position += count
        bars.append(position + cell)
    return push_set(number, bars, total + len(counts) - 1)


def pop_counts(number: int, cells: int, total: int) -> tuple[list[int], int]:
    """(counts [cells], rest): undoes `push_counts`. cells >= 1."""
    bars, number = pop_set(number, cells - 1, total + cells - 1)
    ends = [*bars, total + cells - 1]
    return [end - start - 1 for start, end in zip([-1, *bars], ends, strict=True)], number


def to_bytes(number: int) -> bytes:
    """The shortest bytes of a number, lowest first; at least one."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")


def from_bytes(payload: bytes, max_bytes: int) -> int:
    """The number in the bytes; ProtocolError if these are none, too many, or not the shortest."""
    if not 1 <= len(payload) <= max_bytes:
        raise malformed(f"must have 1 to {max_bytes} bytes, got {len(payload)}")
    if len(payload) > 1 and payload[-1] == 0:
        raise malformed(f"must not end with a zero byte, got {len(payload)} bytes")
    return int.from_bytes(payload, "little")


def max_bytes(num_bits: int) -> int:
    """Upper bound of a payload whose values take so many bits: one byte for rounding, one for what is lost at first."""
    return (num_bits + 7) // 8 + 2


def check_is_subset(kept: int, vocab_size: int) -> None:
    """ProtocolError if a payload would hold more tokens than there are."""
    if kept > vocab_size:
        raise malformed(f"must keep at most the {vocab_size} tokens of the vocabulary, got {kept}")


def check_is_used_up(number: int) -> None:
    """ProtocolError if something is left of a number after everything was taken out: no encoder writes that."""
    if number:
        raise malformed(f"must hold nothing behind its last number, got {number.bit_length()} bits too many")


def _smaller_half(members: Sequence[int], universe: int) -> list[int]:
    """The set or its complement, whichever is smaller; for equal sizes the set."""
    return _complement(members, universe) if 2 * len(members) > universe else list(members)


def _complement(members: Sequence[int], universe: int) -> list[int]:
    taken = set(members)
    return [value for value in range(universe) if value not in taken]


@cache
def support_bits(vocab: int, kept: int) -> int:
    """ceil(log2 C(V, K)): which tokens are kept (SQS Eq. 5)."""
    return (comb(vocab, kept) - 1).bit_length()


@cache
def counts_bits(kept: int, resolution: int) -> int:
    """ceil(log2 C(l + K - 1, K - 1)): counts >= 0 of sum l on K tokens (SQS Eq. 2; QS Eq. 6 with K = V)."""
    return (comb(resolution + kept - 1, resolution) - 1).bit_length()


# ---- Counts from probabilities -----------------------------------------------------------------------------


_SMALL = 1e-290


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
