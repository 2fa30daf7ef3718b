"""The bytes of votes that are no distribution: one token, or the list of the best tokens of a race.

A vote of a session with one voter is the token itself, 1 to 3 bytes. Where log probabilities are asked for they stand
behind it, in the form that they have in a verdict.

A race list, 45 bytes for 8 of 32,000 tokens: a number as in `sets`, 2 n + c for a list of n >= 1 tokens, c = 1 if all
others have probability 0. Then one whole number (`tandem.codecs.sets`), lowest byte first: the bits of each float32
value in (0, 1] minus one, in the order of the ids; which tokens. The order by score is not sent: it follows from the
noise. A vote in full is the number 0, and then the float32 probability of every token, little-endian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution, largest
from tandem.aggregation.race_lists import RaceList, RaceVote, race_list
from tandem.codecs import sets
from tandem.codecs.base import MAX_VOCAB, StatelessCodec, check_dense, malformed
from tandem.codecs.sets import decode_number, encode_number
from tandem.errors import ProtocolError
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


def write_token(token: int, logprobs: Logprobs | None = None) -> bytes:
    """The payload of a token. logprobs: how probable it and others were; None: the token alone."""
    return encode_number(token) + (b"" if logprobs is None else encode(logprobs))


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
    logprobs: Logprobs = registry.decode(payload[end:], (Logprobs,))
    if len(logprobs.top_ids) != len(logprobs.top_logprobs) or any(
        index >= vocab_size for index in logprobs.top_ids
    ):
        raise malformed(f"must hold log probabilities of tokens below {vocab_size}, got {logprobs!r:.80}")
    return token, logprobs


MAX_LISTED = 1024
"""Tokens of the longest list; a voter that is asked for more sends its vote in full."""
WHOLE = 1 << 62
"""The depth of a vote in full: more than any list has."""
_NUM_VALUES = 0x3F800000
"""Positive float32 numbers up to one: the bits of 1.0."""
_VALUE = np.dtype("<f4")
_IN_FULL = b"\0"


@dataclass(frozen=True)
class RaceLists(StatelessCodec):
    """Votes in full, from which lists are cut: nothing is dropped but what float32 cannot hold.

    NOT in the paper (DRAGON). A vote in full stays at its party; its coordinator sends the peers the tokens that score
    best in the race (`tandem.protocol.ballots`).
    """

    name: ClassVar[str] = "race_list"

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        return len(_IN_FULL) + MAX_VOCAB * _VALUE.itemsize

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """A vote in full, of a distribution [vocab]; GenerationError if it is none."""
        check_dense(dense)
        exact = np.asarray(dense, dtype=np.float64)
        values: NDArray[np.float32] = (exact / exact.sum()).astype(_VALUE)
        return _IN_FULL + values.tobytes()

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution of a vote in full, scaled to sum 1; ProtocolError if the bytes are malformed, or a list."""
        vote = read_vote(payload, vocab_size)
        if isinstance(vote, RaceList):
            raise malformed(f"must be a vote in full, got a list of {vote.ids.size} tokens")
        ids = np.flatnonzero(vote)
        values = vote[ids].astype(np.float64)
        return Distribution(ids, values / values.sum())

    def fingerprint(self) -> str:
        """Name and version of the layout; lists of any depth can be read."""
        return f"{self.name}/1"


def read_vote(payload: bytes, vocab_size: int) -> RaceVote:
    """The list in the bytes, or the whole distribution [vocab]; ProtocolError if they are malformed."""
    if payload[:1] != _IN_FULL:
        return decode_race_list(payload, vocab_size)
    size, odd = divmod(len(payload) - len(_IN_FULL), _VALUE.itemsize)
    if odd or not 1 <= size <= vocab_size:
        raise malformed(f"must have 4 bytes for each of {vocab_size} tokens, got {len(payload) - 1}")
    values = np.frombuffer(payload, dtype=_VALUE, offset=len(_IN_FULL)).astype(np.float32)
    if not (values.min() >= 0.0 and 0.0 < values.max() <= 1.0):
        raise malformed(
            f"must have probabilities from 0 to 1, got {float(values.min())} to {float(values.max())}"
        )
    return values


def cut_vote(
    payload: bytes, depth: int, vocab_size: int, *, seed: int, step: int, temperature: float
) -> bytes:
    """The list of the `depth` best tokens of a vote in full, or all of it if that is too many for a list."""
    vote = read_vote(payload, vocab_size)
    if isinstance(vote, RaceList) or depth > MAX_LISTED:
        return payload
    return encode_race_list(race_list(vote, depth, seed=seed, step=step, temperature=temperature), vocab_size)


def vote_depth(payload: bytes) -> int:
    """How many tokens a vote holds, without reading them; WHOLE for all, 0 if the bytes are malformed."""
    if not payload:
        return 0
    if payload[:1] == _IN_FULL:
        return WHOLE
    try:
        header, _ = sets.decode_number(payload, 0)
    except ProtocolError:
        return 0
    return WHOLE if header & 1 else header >> 1


def encode_race_list(race_list: RaceList, vocab_size: int) -> bytes:
    """Bytes of a list of at least one token, whose ids lie below vocab_size."""
    number = 0
    for bits in race_list.values.view(np.uint32).tolist():
        number = sets.push(number, bits - 1, _NUM_VALUES)
    number = sets.push_set(number, race_list.ids.tolist(), vocab_size)
    return sets.encode_number(2 * race_list.ids.size + race_list.is_complete) + sets.to_bytes(number)


def decode_race_list(payload: bytes, vocab_size: int) -> RaceList:
    """The list in the bytes; ProtocolError if they are malformed."""
    header, start = sets.decode_number(payload, 0)
    size, is_complete = divmod(header, 2)
    if not 1 <= size <= MAX_LISTED:
        raise malformed(f"must list 1 to {MAX_LISTED} tokens, got {size}")
    sets.check_is_subset(size, vocab_size)
    number = sets.from_bytes(payload[start:], _max_number_bytes(size, vocab_size))
    ids, number = sets.pop_set(number, size, vocab_size)
    values = []
    for _ in range(size):
        bits, number = sets.pop(number, _NUM_VALUES)
        values.append(bits + 1)
    sets.check_is_used_up(number)
    return RaceList(
        np.array(ids, dtype=np.int64),
        np.array(values[::-1], dtype=np.uint32).view(np.float32),
        size + is_complete,
    )


def _max_number_bytes(size: int, vocab_size: int) -> int:
    return sets.max_bytes(size * (30 + (vocab_size - 1).bit_length()))
