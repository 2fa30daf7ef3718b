"""Codecs: a dense law becomes a few bytes, and the bytes become the very law that both sides use.

Compress, then sample: whatever is lossy happens before a token is drawn, and the drafter itself decodes the
bytes that it sends. Knows nothing of drafts or frames.

Layout of `top_p` (numbers as in `varints`, 16-bit values little-endian):

    byte 0    0x10, plus 1 if the body is an LZ4 block (raw), plus 2 if weights have 32 bits instead of 16
    LZ4 only  number of bytes of the plain body, before the block
    body      n, n ids, then n weights in the order of the ids; for n = 1 no weight
"""

from __future__ import annotations

import difflib
from typing import Any, Protocol

import lz4.block  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.codecs import varints
from tandem.codecs.nucleus import most_probable, nucleus
from tandem.errors import ConfigError, GenerationError, ProtocolError

MAX_VOCAB = 1 << 18
"""Ids must lie below this."""

PLAIN, COMPRESSED, WIDE = 0x10, 0x01, 0x02
DEFAULT_MAX_TOKENS = 4096
"""At most 22 kB a distribution; a nucleus of p = 0.8 is larger only where next to nothing is known."""
MAX_ERROR = 1e-3
"""Total variation between nucleus and decoded distribution above which weights get 32 bits."""

_NARROW_WEIGHT, _WIDE_WEIGHT = np.dtype("<u2"), np.dtype("<u4")
_WORTH_TRYING_BYTES = 32  # LZ4 finds nothing in less


class Codec(Protocol):
    """Turns one side's dense law into bytes and back into the sparse law that both sides use."""

    @property
    def name(self) -> str:
        """The codec's name in configuration."""

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a law [vocab] of probabilities >= 0, not necessarily normalised."""

    def decode(self, payload: bytes) -> Distribution:
        """The law in the bytes; ProtocolError if they are malformed."""

    def bits(self, payload: bytes) -> int:
        """Size of an encoded law in bits."""

    def fingerprint(self) -> str:
        """Everything that must agree on both sides, compared in the handshake."""


class TopP:
    """Nucleus of mass p, ids as gaps, integer weights relative to the largest; LZ4 only where it shortens.

    DRAGON section 7.1. NOT in the paper: gaps instead of 8-bit ids, integer weights instead of half floats
    (their sum is exact, so both hosts divide alike), and the token that crosses p is kept. Weights have 16 bits
    unless that would distort the nucleus by more than MAX_ERROR: a long tail of tokens below half a unit of
    16 bits weighs too much when each is lifted to 1. A nucleus of more than `max_tokens` tokens is cut to its most
    probable ones and renormalised, which bounds every payload by `max_bytes`.
    """

    name = "top_p"

    def __init__(self, p: float = 0.8, max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        """p: mass of the nucleus, in (0, 1]. max_tokens: at most so many tokens, 1 to 2**18. Raises ConfigError."""
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0.0 < p <= 1.0:
            raise ConfigError(f"The mass p of codec top_p must lie in (0, 1], got {p!r}; the default is 0.8.")
        if (
            isinstance(max_tokens, bool)
            or not isinstance(max_tokens, int)
            or not 1 <= max_tokens <= MAX_VOCAB
        ):
            raise ConfigError(
                f"The size max_tokens of codec top_p must lie in [1, {MAX_VOCAB}], got {max_tokens!r}; "
                f"the default is {DEFAULT_MAX_TOKENS}."
            )
        self.p = float(p)
        self.max_tokens = max_tokens

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        weight_bytes = self.max_tokens * _WIDE_WEIGHT.itemsize
        return 1 + varints.MAX_BYTES + varints.max_id_bytes(self.max_tokens, MAX_VOCAB) + weight_bytes

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a law [vocab], vocab <= 2**18; GenerationError if it is no law."""
        largest = _check(dense)
        ids = most_probable(dense, nucleus(dense, self.p), self.max_tokens)
        weights = _quantise(np.asarray(dense[ids], dtype=np.float64) / largest)
        body = varints.encode_number(ids.size) + varints.encode_ids(ids)
        form = PLAIN | WIDE if weights.dtype == _WIDE_WEIGHT else PLAIN
        return _shortest(form, body + weights.tobytes() if ids.size > 1 else body)

    def decode(self, payload: bytes) -> Distribution:
        """The law w / sum(w) in the bytes; ProtocolError if they are malformed."""
        form, body = _plain_body(payload, self.max_bytes)
        count, position = varints.decode_number(body, 0)
        if not 1 <= count <= self.max_tokens:
            raise _malformed(f"must hold 1 to {self.max_tokens} tokens, got {count}")
        ids, position = varints.decode_ids(body, position, count)
        if int(ids[-1]) >= MAX_VOCAB:
            raise _malformed(f"must hold token ids below {MAX_VOCAB}, got {int(ids[-1])}")
        weights = _weights(body[position:], count, _WIDE_WEIGHT if form & WIDE else _NARROW_WEIGHT)
        return Distribution(ids, weights / int(weights.sum()))

    def bits(self, payload: bytes) -> int:
        """Size of an encoded law in bits."""
        return 8 * len(payload)

    def fingerprint(self) -> str:
        """Name, version of the layout, p to the last bit, and the cap."""
        return f"{self.name}/2(p={self.p!r}, max_tokens={self.max_tokens})"


CODECS = {TopP.name: TopP}
"""Codecs by name."""


def make_codec(name: str, **parameters: Any) -> Codec:
    """The codec of that name; ConfigError if the name or a parameter is unknown or out of range."""
    if name not in CODECS:
        raise ConfigError(f"The codec {name!r} is unknown; choose one of {', '.join(CODECS)}.")
    known = ("p", "max_tokens")
    for key in parameters:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1) or known
            raise ConfigError(f"The codec {name} has no parameter {key!r}; did you mean {near[0]!r}?")
    return CODECS[name](**parameters)


def _check(dense: NDArray[np.floating]) -> float:
    """The largest probability; GenerationError unless the array is a finite, non-negative law that fits."""
    if dense.ndim != 1 or not 1 <= dense.size <= MAX_VOCAB:
        raise GenerationError(
            f"A law must have one dimension of 1 to {MAX_VOCAB} tokens, got shape {dense.shape}; "
            "use a model with a smaller vocabulary."
        )
    smallest, largest = float(dense.min()), float(dense.max())
    if not (smallest >= 0.0 and 0.0 < largest < np.inf):  # NaN fails too
        raise GenerationError(
            f"A law must be finite, non-negative and not all zero, got values from {smallest} to {largest}; "
            "check the model's logits and dtype."
        )
    return largest


def _quantise(relative: NDArray[np.float64]) -> NDArray[Any]:
    """Weights [n], each >= 1, of probabilities relative to the largest, [n]; 16 bits if they are accurate enough."""
    weights = _weights_of(relative, _NARROW_WEIGHT)
    error = np.abs(weights / weights.sum(dtype=np.int64) - relative / relative.sum()).sum() / 2
    return weights if error <= MAX_ERROR else _weights_of(relative, _WIDE_WEIGHT)


def _weights_of(relative: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The nearest integers of that width, with the largest number for the largest probability."""
    return np.maximum(1, np.rint(relative * np.iinfo(dtype).max)).astype(dtype)


def _shortest(form: int, body: bytes) -> bytes:
    """The body behind its form byte, compressed if and only if that is shorter."""
    plain = bytes([form]) + body
    if len(body) < _WORTH_TRYING_BYTES:
        return plain
    block = lz4.block.compress(body, store_size=False)
    compressed = bytes([form | COMPRESSED]) + varints.encode_number(len(body)) + block
    return compressed if len(compressed) < len(plain) else plain


def _plain_body(payload: bytes, max_bytes: int) -> tuple[int, bytes]:
    """(form, body), decompressed within bounds; max_bytes: of a form byte and a body."""
    if not payload or payload[0] & ~(COMPRESSED | WIDE) != PLAIN:
        raise _malformed(f"must begin with a byte from 0x10 to 0x13, got {payload[:1].hex() or 'nothing'}")
    if len(payload) > max_bytes:
        raise _malformed(f"must not exceed {max_bytes} bytes, got {len(payload)}")
    if not payload[0] & COMPRESSED:
        return payload[0], payload[1:]
    size, position = varints.decode_number(payload, 1)
    if size >= max_bytes:
        raise _malformed(f"must not exceed {max_bytes - 1} bytes when decompressed, got {size}")
    try:
        body = bytes(lz4.block.decompress(payload[position:], uncompressed_size=size))
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise _malformed(
            f"must hold a valid LZ4 block, got {payload[position : position + 8].hex()}..."
        ) from error
    if len(body) != size:
        raise _malformed(f"must decompress to the {size} bytes it announces, got {len(body)}")
    return payload[0], body


def _weights(tail: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """The weights [count] behind the ids, each >= 1; a lone token carries none."""
    expected_bytes = count * dtype.itemsize if count > 1 else 0
    if len(tail) != expected_bytes:
        raise _malformed(f"must have {expected_bytes} bytes of weights for {count} tokens, got {len(tail)}")
    weights = np.frombuffer(tail, dtype=dtype).astype(np.int64) if count > 1 else np.ones(1, dtype=np.int64)
    if int(weights.min()) < 1:
        raise _malformed("must have weights of at least 1, got 0")
    return weights


def _malformed(rule: str) -> ProtocolError:
    """One sentence about a law whose bytes break the layout."""
    return ProtocolError(f"An encoded law {rule}; drop the frame and ask the sender again.")
