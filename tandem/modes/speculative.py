"""Mode speculative: the device drafts and has no vote; the cloud's distribution alone is the target.

device --Vote: ids--> cloud, which votes and decides --Verdict--> device

A vote is the token that it gives, and stays in the cloud. With the rule `rejection` the distributions that the ids were
drawn from travel along. With pacing `cloud_goes_on` the cloud commits its own tokens without waiting for proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from tandem.aggregation.rules import proposal_rule
from tandem.messages.wire import varint_bytes
from tandem.modes.mode import Proposing
from tandem.modes.query import QuerySpec, Role, Roles
from tandem.topology import PAIR

BITS_PER_BYTE = 8


class Speculative(Proposing):
    """A bad, broken or lying drafter makes it slow, never different."""

    name = "speculative"
    votes_are_tokens = True

    def assign_roles(self, spec: QuerySpec) -> Roles:
        """The cloud is the only voter."""
        return Roles(topology=PAIR, roles=(Role(drafts=True), Role(votes=True, weight=1.0, decides=True)))

    def goes_on_at(self, party: str) -> bool:
        """The cloud, if the pacing says so."""
        return self.pacing == "cloud_goes_on" and self.roles.role(party).decides

    @property
    def needs_drafts(self) -> bool:
        """Whether the rule needs the drafts' distributions."""
        return proposal_rule(self.draft_rule, self.spec.sampling.temperature).needs_drafts

    @property
    def longest_proposal(self) -> int:
        """The configured number, if so many could ever fit the uplink budget."""
        return self.uplink_budget.longest(self.spec.decoding.max_proposal)

    def count_fitting(self, payloads: Sequence[bytes]) -> int:
        """The number of drafts that the uplink budget allows."""
        return self.uplink_budget.count_fitting(payloads)

    @cached_property
    def uplink_budget(self) -> UplinkBudget:
        """The limit on the bits of a proposal."""
        spec = self.spec
        return UplinkBudget(spec.decoding.uplink_budget_bits, spec.vocab_size, sends_drafts=self.needs_drafts)


class UplinkBudget:
    """How many drafts a proposal may hold, where its bits are limited: the uplink budget B of a round (SQS).

    Counted are the bytes that grow with the tokens of a `Vote`, as they are written on the link: ids, and
    distributions with their lengths where those travel. NOT in the paper: ids are counted, too.

    Invariant: what fits depends on the distributions alone and never on a token that was drawn from one, so each id
    counts as the longest one of the vocabulary. Otherwise the rule `rejection` would not be exact: a token that is held
    back because of its id would be replaced by one of the verifier's, and one that is sent would not.
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

    def _draft_bytes(self, payload: bytes) -> int:
        sent = varint_bytes(len(payload)) + len(payload) if self._sends_drafts else 0
        return self._id_bytes + sent
