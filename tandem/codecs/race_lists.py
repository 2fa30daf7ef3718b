"""The bytes of a race list: 44 for the 8 best tokens of 32,000.

Layout: one whole number (`tandem.codecs.sets`), lowest byte first: the bits of each float32 value in (0, 1] minus one,
in the order of the ids; which tokens; how many, 0 to K. The order by score is not sent: it follows from the noise.
"""

from __future__ import annotations

import numpy as np

from tandem.aggregation.race_lists import RaceList
from tandem.codecs import sets

_NUM_VALUES = 0x3F800000
"""Positive float32 numbers up to one: the bits of 1.0."""


def encode_race_list(found: RaceList, vocab_size: int) -> bytes:
    """Bytes of a list whose ids lie below vocab_size."""
    number = 0
    for bits in found.values.view(np.uint32).tolist():
        number = sets.push(number, bits - 1, _NUM_VALUES)
    number = sets.push_set(number, found.ids.tolist(), vocab_size)
    return sets.to_bytes(sets.push(number, found.ids.size, found.depth + 1))


def decode_race_list(payload: bytes, depth: int, vocab_size: int) -> RaceList:
    """The list in the bytes; ProtocolError if they are malformed. depth: K of the request."""
    number = sets.from_bytes(payload, max_race_list_bytes(depth, vocab_size))
    size, number = sets.pop(number, depth + 1)
    sets.check_is_subset(size, vocab_size)
    ids, number = sets.pop_set(number, size, vocab_size)
    values = []
    for _ in range(size):
        bits, number = sets.pop(number, _NUM_VALUES)
        values.append(bits + 1)
    sets.check_is_used_up(number)
    return RaceList(
        np.array(ids, dtype=np.int64), np.array(values[::-1], dtype=np.uint32).view(np.float32), depth
    )


def max_race_list_bytes(depth: int, vocab_size: int) -> int:
    """Size of the largest payload of a list of K = depth."""
    id_bits = (vocab_size - 1).bit_length()
    return sets.max_bytes(depth * (30 + id_bits) + (depth + 1).bit_length())
