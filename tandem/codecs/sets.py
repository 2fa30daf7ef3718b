"""Sets of token ids and counts as bytes: gaps of variable length, or one number at the combinatorial bound.

Gaps (LEB128) have seven bits per byte, lowest first; a set high bit means more. The first number is the first id, each
further one the gap to the next id minus one, so every byte string decodes to strictly ascending ids. Works on whole
arrays: a frame's single integers are written by `tandem.messages.wire`.

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

MAX_BYTES = 3
"""Longest number: 21 bits, enough for ids below 2**19."""
FEW = 32
"""Up to so many ids are written and read one by one, which is faster than with arrays."""

_BYTES = [bytes([value]) for value in range(1 << 7)]


def encode_number(value: int) -> bytes:
    """One number in [0, 2**21)."""
    if value < 1 << 7:
        return _BYTES[value]
    out = bytearray()
    while value >= 1 << 7:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_number(payload: bytes, start: int) -> tuple[int, int]:
    """(number, position after it); ProtocolError if the payload ends inside it or it is too long."""
    if start < len(payload) and (byte := payload[start]) < 0x80:  # nearly always
        return byte, start + 1
    value = 0
    for position, byte in enumerate(payload[start : start + MAX_BYTES]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, start + position + 1
    raise malformed(
        f"must hold a number of at most {MAX_BYTES} bytes, got {payload[start : start + MAX_BYTES].hex()!r}"
    )


def encode_ids(ids: NDArray[np.int64]) -> bytes:
    """Strictly ascending ids [n], n >= 1, below 2**21."""
    if ids.size <= FEW:
        few = ids.tolist()
        return b"".join(
            encode_number(after - before - 1) for before, after in zip([-1, *few], few, strict=False)
        )
    gaps = np.empty_like(ids)
    gaps[0] = ids[0]
    gaps[1:] = ids[1:] - ids[:-1] - 1
    return _pack(gaps)


def max_id_bytes(count: int, vocab: int) -> int:
    """The most bytes that `count` ids below `vocab` can take: few gaps are wide, since they add up to < vocab."""
    return count + min(count, vocab >> 7) + min(count, vocab >> 14)


def decode_ids(payload: bytes, start: int, count: int) -> tuple[NDArray[np.int64], int]:
    """(ids [count], position after them); ProtocolError if the payload does not hold them."""
    if count > FEW:
        gaps, end = _unpack(payload, start, count)
        return np.cumsum(gaps + 1) - 1, end
    ids, last, end = [], -1, start
    for _ in range(count):
        gap, end = decode_number(payload, end)
        last += gap + 1
        ids.append(last)
    return np.array(ids, dtype=np.int64), end


def _pack(values: NDArray[np.int64]) -> bytes:
    """Numbers below 2**21, one after another."""
    if int(values.max()) < 1 << 7:  # the usual case for flat distributions, and ten times as fast
        return values.astype(np.uint8).tobytes()
    lengths = 1 + (values >= 1 << 7) + (values >= 1 << 14)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    for position in range(MAX_BYTES):
        has = lengths > position
        digit = (values[has] >> (7 * position)) & 0x7F
        more = (lengths[has] > position + 1).astype(np.int64) << 7
        out[starts[has] + position] = digit | more
    return out.tobytes()


def _unpack(payload: bytes, start: int, count: int) -> tuple[NDArray[np.int64], int]:
    """(numbers [count], position after them)."""
    digits = np.frombuffer(payload, dtype=np.uint8)[start : start + MAX_BYTES * count]
    ends = np.flatnonzero(digits < 0x80)[:count]
    if ends.size < count:
        raise malformed(f"must hold the {count} numbers it announces, got {ends.size}")
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1] + 1])
    lengths = ends - starts + 1
    if int(lengths.max()) > MAX_BYTES:
        raise malformed(f"must hold numbers of at most {MAX_BYTES} bytes, got {int(lengths.max())}")
    values = np.zeros(count, dtype=np.int64)
    for position in range(MAX_BYTES):
        has = lengths > position
        values[has] |= (digits[starts[has] + position].astype(np.int64) & 0x7F) << (7 * position)
    return values, start + int(ends[-1]) + 1


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
        # bisection: how many members lie below the number of that rank among all others
        index, high = 0, count
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
