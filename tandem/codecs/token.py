"""A vote that is one token, for sessions with one voter: the token itself, 1 to 3 bytes."""

from __future__ import annotations

from tandem.codecs.base import malformed
from tandem.codecs.varints import decode_number, encode_number


def write_token(token: int) -> bytes:
    """The payload of a token."""
    return encode_number(token)


def read_token(payload: bytes, vocab_size: int) -> int:
    """Inverse of `write_token`. Raises ProtocolError unless the payload is a token below `vocab_size` and no more."""
    token, end = decode_number(payload, 0)
    if end != len(payload) or token >= vocab_size:
        raise malformed(f"must be one token below {vocab_size}, got {payload.hex()!r}")
    return token
