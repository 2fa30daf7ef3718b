"""Ascending token ids as variable-length gaps (LEB128): seven bits per byte, lowest first; a set high bit means more.

The first number is the first id, each further one the gap to the next id minus one, so every byte string decodes to
strictly ascending ids. Works on whole arrays: a frame's single integers are written by `tandem.messages.wire`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.codecs.base import malformed

MAX_BYTES = 3
"""Longest number: 21 bits, enough for ids below 2**18."""
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
