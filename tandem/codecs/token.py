"""A vote that is one token, for sessions with one voter: the token itself, 1 to 3 bytes; and log probabilities.

Where log probabilities are asked for they stand behind it, as the doubles that they are: that of the token, a count,
and as many ids and their log probabilities.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from tandem.aggregation.distributions import Distribution, largest
from tandem.codecs.base import malformed
from tandem.codecs.varints import decode_number, encode_number


class TargetLogprobs(NamedTuple):
    """Natural logarithms of target probabilities."""

    token: float  # of the committed token
    top: tuple[tuple[int, float], ...]  # (id, logarithm) of the likeliest tokens, the likeliest first


def log_probabilities(target: Distribution, token: int, num_top: int) -> TargetLogprobs:
    """Log probabilities of a token of the target and of its `num_top` likeliest ones; of equals the lowest ids.

    There are fewer if fewer have a probability above zero: sampling options and codecs exclude tokens.
    """
    target = target.spread()
    places = largest(target.probabilities, min(num_top, len(target))) if num_top > 0 else ()
    rows = [(int(target.ids[place]), float(target.probabilities[place])) for place in places]
    rows.sort(key=lambda row: -row[1])  # stable, and places ascend
    return TargetLogprobs(
        math.log(target.probability(token)),
        tuple((index, math.log(probability)) for index, probability in rows if probability > 0.0),
    )


def write_token(token: int, known: TargetLogprobs | None = None) -> bytes:
    """The payload of a token. known: how probable it and others were; None: the token alone."""
    if known is None:
        return encode_number(token)
    ids, logprobs = zip(*known.top, strict=True) if known.top else ((), ())
    numbers = b"".join(map(encode_number, (len(ids), *ids)))
    own = struct.pack("<d", known.token)
    return encode_number(token) + own + numbers + struct.pack(f"<{len(ids)}d", *logprobs)


def read_token(payload: bytes, vocab_size: int) -> int:
    """The token of a payload. Raises ProtocolError as `read_named_token`."""
    return read_named_token(payload, vocab_size)[0]


def read_named_token(payload: bytes, vocab_size: int) -> tuple[int, TargetLogprobs | None]:
    """Inverse of `write_token`. Raises ProtocolError unless all tokens are below `vocab_size` and nothing is left."""
    token, end = decode_number(payload, 0)
    if token >= vocab_size:
        raise malformed(f"must be a token below {vocab_size}, got {payload[:end].hex()!r}")
    return token, None if end == len(payload) else _read_logprobs(payload, end, vocab_size)


def _read_logprobs(payload: bytes, start: int, vocab_size: int) -> TargetLogprobs:
    size, end = decode_number(payload, start + 8)
    ids: list[int] = []
    for _ in range(min(size, len(payload))):
        index, end = decode_number(payload, end)
        ids.append(index)
    if len(payload) != end + 8 * size or any(index >= vocab_size for index in ids):
        raise malformed(
            f"must hold the log probabilities of {size} tokens, got {payload[start:].hex()!r:.80}"
        )
    (own,) = struct.unpack_from("<d", payload, start)
    return TargetLogprobs(own, tuple(zip(ids, struct.unpack_from(f"<{size}d", payload, end), strict=True)))
