"""The common part of modes speculative and federated: a drafter without a vote proposes, and votes follow its
proposals.

drafter --Vote: ids--> voters --Vote--> who decides --Verdict--> all others
"""

from __future__ import annotations

from tandem.modes.mode import Mode

MAX_PROPOSAL = 16
"""Most tokens of one proposal."""
FIRST_LENGTH = 4
"""Tokens of the first proposals of a query, where lengths adapt."""


class Proposing(Mode):
    """Proposals of up to `max_proposal` tokens; a party that is both voter and decider sends itself nothing."""

    drafters_vote = False
    follows_proposals = True
    max_proposal = MAX_PROPOSAL

    def proposes(self, party: str) -> bool:
        """The drafter, unless no token fits a proposal."""
        return self.longest_proposal > 0 and self.roles.role(party).drafts

    def adapts_lengths(self, party: str) -> bool:
        """The drafter, where a policy chooses."""
        return self._has_policy and self.proposes(party)

    @property
    def first_length(self) -> int:
        """A few, where a policy chooses; else the most."""
        return min(FIRST_LENGTH, self.longest_proposal) if self._has_policy else self.longest_proposal

    @property
    def _has_policy(self) -> bool:
        return self.spec.decoding.length_policy != "fixed"
