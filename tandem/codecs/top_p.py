"""Codec `top_p`: the most probable tokens that together reach mass p, with integer weights.

Layout (numbers as in `varints`, weights little-endian):

    byte 0    0x10, plus 1 if the body is an LZ4 block (raw), plus 2 if weights have 32 bits instead of 16
    LZ4 only  number of bytes of the plain body, before the block
    body      n, n ids, then n weights in the order of the ids; for n = 1 no weight
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import lz4.block  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution, most_probable
from tandem.codecs import sets
from tandem.codecs.base import MAX_VOCAB, StatelessCodec, check_dense, malformed
from tandem.errors import ConfigError

# ---- The nucleus of a dense distribution -------------------------------------------------------------------


SORT_LIMIT = 4096
"""At most this many values are sorted at once."""

_DIGIT_SHIFTS = (48, 32, 16, 0)  # 16 bits of a positive double at a time, the highest first
_FIRST_THRESHOLD = 2.0**-6  # of the largest probability; each further try goes down by 2**-6


def nucleus(dense: NDArray[np.floating], top_p: float) -> NDArray[np.int64]:
    """Ids of the nucleus, ascending, [n], n >= 1.

    Most probable first until their mass is >= top_p, including the token that crosses; of equals the lowest ids.

    dense: [vocab], >= 0, not all zero, not necessarily normalised. top_p: in (0, 1].
    """
    need = top_p * float(np.add.reduce(dense, dtype=np.float64))
    ids = _candidates(dense, need, top_p)
    values = np.asarray(dense[ids], dtype=np.float64)
    chosen = []
    for shift in _DIGIT_SHIFTS:
        if ids.size <= SORT_LIMIT or values.min() == values.max():
            break
        digits = (values.view(np.int64) >> shift) & 0xFFFF
        crossing, mass_above = _crossing(digits, values, need)
        chosen.append(ids[digits > crossing])
        need -= mass_above
        at_crossing = np.flatnonzero(digits == crossing)
        ids, values = ids[at_crossing], values[at_crossing]
    chosen.append(_fewest(ids, values, need))
    return np.sort(np.concatenate(chosen), kind="stable") if len(chosen) > 1 else chosen[0]


def _candidates(dense: NDArray[Any], need: float, top_p: float) -> NDArray[np.int64]:
    """All tokens above a threshold that leaves enough mass above it, ascending."""
    largest = float(np.maximum.reduce(dense))
    # What lies below (1 - p) total / vocab weighs less than 1 - p in all, so this threshold always suffices.
    lowest = need / top_p * (1.0 - top_p) / dense.size
    threshold = largest * _FIRST_THRESHOLD
    while threshold > lowest:
        ids = (dense >= threshold).nonzero()[0]
        if float(np.add.reduce(dense[ids], dtype=np.float64)) >= need:
            return ids
        threshold *= _FIRST_THRESHOLD
    return np.flatnonzero((dense >= lowest) & (dense > 0))


def _crossing(digits: NDArray[np.int64], values: NDArray[np.float64], need: float) -> tuple[int, float]:
    """(digit at which the mass, summed from the highest digit down, reaches `need`; mass above it)."""
    masses = np.bincount(digits, weights=values)
    from_top = np.cumsum(masses[::-1])[::-1]
    reached = np.flatnonzero(from_top >= need)
    crossing = int(reached[-1]) if reached.size else 0  # rounding may miss the last unit of p = 1
    return crossing, float(from_top[crossing + 1]) if crossing + 1 < from_top.size else 0.0


def _fewest(ids: NDArray[np.int64], values: NDArray[np.float64], need: float) -> NDArray[np.int64]:
    """The most probable of few, or of equally probable, tokens until their mass reaches `need`; ids ascending."""
    is_few = ids.size <= SORT_LIMIT
    order = (-values).argsort(kind="stable") if is_few else np.arange(ids.size)  # ids ascend among equals
    count = int(values[order].cumsum().searchsorted(need)) + 1
    chosen = ids[order[:count]]
    chosen.sort()
    return chosen


PLAIN, COMPRESSED, WIDE = 0x10, 0x01, 0x02
MOST_TOKENS = 1 << 18
"""Largest support that may be asked for."""
DEFAULT_MAX_TOKENS = 4096
"""At most 25 kB per distribution. Only a model with next to no idea of what follows needs more for p = 0.8."""
MAX_ERROR = 1e-3
"""Total variation between nucleus and decoded distribution above which weights get 32 bits."""

_NARROW_WEIGHT, _WIDE_WEIGHT = np.dtype("<u2"), np.dtype("<u4")
_LARGEST = {dtype: np.iinfo(dtype).max for dtype in (_NARROW_WEIGHT, _WIDE_WEIGHT)}
ALWAYS_NARROW = 65
"""So few 16-bit weights are accurate enough: each is off by at most a unit, which makes n / 65,535 in all."""
_WORTH_TRYING_BYTES = 32  # LZ4 finds nothing in less


@dataclass(frozen=True)
class TopP(StatelessCodec):
    """Nucleus of mass p: ids as gaps, integer weights relative to the largest; LZ4 only where it saves bytes.

    DRAGON section 7.1. NOT in the paper: gaps instead of 8-bit ids, integer weights instead of half floats
    (their sum is exact, so both hosts get the same bits), and the token that crosses p is kept. Weights have 16 bits
    unless that would distort the nucleus by more than MAX_ERROR: weights are at least 1, which is too much for a long
    tail of tokens below half a unit. A nucleus of more than `max_tokens` tokens is cut to its most probable ones and
    renormalised, so no payload exceeds `max_bytes`.
    """

    name: ClassVar[str] = "top_p"
    p: float = 0.8  # mass of the nucleus, in (0, 1]
    max_tokens: int = DEFAULT_MAX_TOKENS  # largest support, 1 to 2**18

    def __post_init__(self) -> None:
        """Raises ConfigError for a parameter out of range."""
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0.0 < self.p <= 1.0:
            raise ConfigError(
                f"The mass p of codec top_p must lie in (0, 1], got {self.p!r}; the default is 0.8."
            )
        is_count = isinstance(self.max_tokens, int) and not isinstance(self.max_tokens, bool)
        if not (is_count and 1 <= self.max_tokens <= MOST_TOKENS):
            raise ConfigError(
                f"The size max_tokens of codec top_p must lie in [1, {MOST_TOKENS}], got {self.max_tokens!r}; "
                f"the default is {DEFAULT_MAX_TOKENS}."
            )
        object.__setattr__(self, "p", float(self.p))

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        weight_bytes = self.max_tokens * _WIDE_WEIGHT.itemsize
        return 1 + sets.MAX_BYTES + sets.max_id_bytes(self.max_tokens, MAX_VOCAB) + weight_bytes

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab], vocab <= 2**19; GenerationError if it is none."""
        largest = check_dense(dense)
        ids = most_probable(dense, nucleus(dense, self.p), self.max_tokens)
        weights = quantise(np.asarray(dense[ids], dtype=np.float64) / largest)
        body = sets.encode_number(ids.size) + sets.encode_ids(ids)
        form = PLAIN | WIDE if weights.dtype == _WIDE_WEIGHT else PLAIN
        return shortest(form, body + weights.tobytes() if ids.size > 1 else body)

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution w / sum(w) in the bytes; ProtocolError if they are malformed."""
        form, body = _plain_body(payload, self.max_bytes)
        count, position = sets.decode_number(body, 0)
        if not 1 <= count <= self.max_tokens:
            raise malformed(f"must hold 1 to {self.max_tokens} tokens, got {count}")
        ids, position = sets.decode_ids(body, position, count)
        if int(ids[-1]) >= vocab_size:
            raise malformed(f"must hold token ids below {vocab_size}, got {int(ids[-1])}")
        weights = _weights(body[position:], count, _WIDE_WEIGHT if form & WIDE else _NARROW_WEIGHT)
        return Distribution(ids, weights / int(np.add.reduce(weights)))

    def fingerprint(self) -> str:
        """Name, version of the layout, p to the last bit, and the cap."""
        return f"{self.name}/2(p={self.p!r}, max_tokens={self.max_tokens})"


def quantise(relative: NDArray[np.float64]) -> NDArray[Any]:
    """Weights [n], each >= 1, of probabilities relative to the largest, [n]; 16 bits if they are accurate enough."""
    weights = _weights_of(relative, _NARROW_WEIGHT)
    if relative.size <= ALWAYS_NARROW:
        return weights
    total = np.add.reduce(weights, dtype=np.int64)
    error = np.add.reduce(np.abs(weights / total - relative / np.add.reduce(relative))) / 2
    return weights if error <= MAX_ERROR else _weights_of(relative, _WIDE_WEIGHT)


def _weights_of(relative: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The nearest integers of that width, with the largest number for the largest probability."""
    return np.maximum(1, np.rint(relative * _LARGEST[dtype])).astype(dtype)


def shortest(form: int, body: bytes) -> bytes:
    """The body behind its form byte, compressed if and only if that is shorter."""
    plain = bytes([form]) + body
    if len(body) < _WORTH_TRYING_BYTES:
        return plain
    block = lz4.block.compress(body, store_size=False)
    compressed = bytes([form | COMPRESSED]) + sets.encode_number(len(body)) + block
    return compressed if len(compressed) < len(plain) else plain


def _plain_body(payload: bytes, max_bytes: int) -> tuple[int, bytes]:
    """(form, body), decompressed within bounds; max_bytes: of a form byte and a body."""
    if not payload or payload[0] & ~(COMPRESSED | WIDE) != PLAIN:
        raise malformed(f"must begin with a byte from 0x10 to 0x13, got {payload[:1].hex() or 'nothing'}")
    if len(payload) > max_bytes:
        raise malformed(f"must not exceed {max_bytes} bytes, got {len(payload)}")
    if not payload[0] & COMPRESSED:
        return payload[0], payload[1:]
    size, position = sets.decode_number(payload, 1)
    if size >= max_bytes:
        raise malformed(f"must not exceed {max_bytes - 1} bytes when decompressed, got {size}")
    try:
        body = bytes(lz4.block.decompress(payload[position:], uncompressed_size=size))
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise malformed(
            f"must hold a valid LZ4 block, got {payload[position : position + 8].hex()}..."
        ) from error
    if len(body) != size:
        raise malformed(f"must decompress to the {size} bytes it announces, got {len(body)}")
    return payload[0], body


def _weights(tail: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """The weights [count] behind the ids, each >= 1; a lone token carries none."""
    expected_bytes = count * dtype.itemsize if count > 1 else 0
    if len(tail) != expected_bytes:
        raise malformed(f"must have {expected_bytes} bytes of weights for {count} tokens, got {len(tail)}")
    weights = np.frombuffer(tail, dtype=dtype).astype(np.int64) if count > 1 else np.ones(1, dtype=np.int64)
    if np.minimum.reduce(weights) < 1:
        raise malformed("must have weights of at least 1, got 0")
    return weights
