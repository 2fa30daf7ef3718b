"""The common part of modes speculative and federated: a drafter without a vote proposes, and votes follow its
proposals.

drafter --Vote: ids--> voters --Vote--> who decides --Verdict--> all others
"""

from __future__ import annotations

from tandem.modes.mode import Mode

MAX_PROPOSAL = 16
"""Most tokens of one proposal."""


class Proposing(Mode):
    """Proposals of up to `max_proposal` tokens; a party that is both voter and decider sends itself nothing."""

    drafters_vote = False
    follows_proposals = True
    max_proposal = MAX_PROPOSAL

    def proposes(self, party: str) -> bool:
        """The drafter, unless no token fits a proposal."""
        return self.longest_proposal > 0 and self.roles.role(party).drafts
