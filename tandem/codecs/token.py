"""A vote that is one token, for sessions with one voter: the token itself, 1 to 3 bytes; and log probabilities.

Where log probabilities are asked for they stand behind it, in the form that they have in a verdict.
"""

from __future__ import annotations

import math

from tandem.aggregation.distributions import Distribution, largest
from tandem.codecs.base import malformed
from tandem.codecs.varints import decode_number, encode_number
from tandem.messages import Logprobs, encode, registry


def log_probabilities(target: Distribution, token: int, num_top: int) -> Logprobs:
    """Log probabilities of a token of the target and of its `num_top` likeliest ones; of equals the lowest ids.

    There are fewer if fewer have a probability above zero: sampling options and codecs exclude tokens.
    """
    target = target.spread()
    places = largest(target.probabilities, min(num_top, len(target))) if num_top > 0 else ()
    rows = [(int(target.ids[place]), float(target.probabilities[place])) for place in places]
    rows.sort(key=lambda row: -row[1])  # stable, and places ascend
    rows = [row for row in rows if row[1] > 0.0]
    return Logprobs(
        logprob=math.log(target.probability(token)),
        top_ids=tuple(index for index, _ in rows),
        top_logprobs=tuple(math.log(probability) for _, probability in rows),
    )


def write_token(token: int, known: Logprobs | None = None) -> bytes:
    """The payload of a token. known: how probable it and others were; None: the token alone."""
    return encode_number(token) + (b"" if known is None else encode(known))


def read_token(payload: bytes, vocab_size: int) -> int:
    """The token of a payload. Raises ProtocolError as `read_named_token`."""
    return read_named_token(payload, vocab_size)[0]


def read_named_token(payload: bytes, vocab_size: int) -> tuple[int, Logprobs | None]:
    """Inverse of `write_token`. Raises ProtocolError unless all tokens are below `vocab_size` and nothing is left."""
    token, end = decode_number(payload, 0)
    if token >= vocab_size:
        raise malformed(f"must be a token below {vocab_size}, got {payload[:end].hex()!r}")
    if end == len(payload):
        return token, None
    known: Logprobs = registry.decode(payload[end:], (Logprobs,))
    if len(known.top_ids) != len(known.top_logprobs) or any(index >= vocab_size for index in known.top_ids):
        raise malformed(f"must hold log probabilities of tokens below {vocab_size}, got {known!r:.80}")
    return token, known
