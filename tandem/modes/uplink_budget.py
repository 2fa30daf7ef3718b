"""How many drafts a proposal may hold, where its bits are limited: the uplink budget B of a round (SQS).

Counted are the bytes that grow with the tokens of a `Proposal`, as they are written on the link: ids, and distributions
with their lengths where those travel. NOT in the paper: ids are counted, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tandem.messages.wire import varint_bytes

BITS_PER_BYTE = 8


class UplinkBudget:
    """The limit of one session's proposals.

    Invariant: what fits depends on the distributions alone and never on a token that was drawn from one, so each id
    counts as the longest one of the vocabulary. Else the rule `rejection` would not be exact: a token that is kept back
    for its id would give way to one of the verifier's, and one that is sent would not.
    """

    def __init__(self, num_bits: int, vocab_size: int, *, sends_drafts: bool) -> None:
        """num_bits: B; 0: no limit. vocab_size: V tokens. sends_drafts: whether distributions travel with the ids."""
        self._num_bits = num_bits
        self._id_bytes = varint_bytes(vocab_size - 1)
        self._sends_drafts = sends_drafts

    def longest(self, most: int) -> int:
        """The longest proposal of at most `most` tokens that could ever fit."""
        return min(most, self._num_bits // (BITS_PER_BYTE * self._id_bytes)) if self._num_bits else most

    def count_fitting(self, payloads: Sequence[bytes]) -> int:
        """How many of these drafts, in order, one proposal may hold. payloads: their encoded distributions."""
        if not self._num_bits:
            return len(payloads)
        sizes = accumulate(BITS_PER_BYTE * self._draft_bytes(payload) for payload in payloads)
        return sum(size <= self._num_bits for size in sizes)

    def holds(self, num_tokens: int, payloads: Sequence[bytes]) -> bool:
        """Whether one proposal may be of so many tokens. payloads: their distributions; none where ids travel alone."""
        return self.count_fitting(payloads or [b""] * num_tokens) == num_tokens

    def _draft_bytes(self, payload: bytes) -> int:
        sent = varint_bytes(len(payload)) + len(payload) if self._sends_drafts else 0
        return self._id_bytes + sent
