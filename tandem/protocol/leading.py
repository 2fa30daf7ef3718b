"""What a coordinator tells the own decoder to vote on, where votes follow another party's proposal."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.protocol.ballots import BallotBox
from tandem.protocol.convergence import make_proposals
from tandem.protocol.log import CommittedLog
from tandem.protocol.messages import Follow, Proposal
from tandem.protocol.outbox import Send
from tandem.protocol.routes import Routes
from tandem.protocol.spec import SessionSpec

PATIENCE_S = 0.5
"""A voter without a proposal votes on the committed prefix after this long: no drafter can stop the answer."""


class Leading:
    """Proposals for the own decoder of a party that votes and does not draft; of another party, nothing.

    Invariants: what the decoder is given is held in the ballot box, or asks for a vote on the committed prefix. A vote
    on that is asked for once.
    """

    def __init__(
        self, spec: SessionSpec, party: str, routes: Routes, log: CommittedLog, ballots: BallotBox
    ) -> None:
        self._session, self._roles, self._party = spec.session, spec.roles, party
        self._routes, self._log, self._ballots = routes, log, ballots
        self._asked = b""  # the last prefix that a vote was asked for

    def lead(self, source: str, proposal: Proposal) -> list[Send]:
        """A peer's proposal has been taken in."""
        if not self._routes.follows_proposals:
            return []
        entry = self._ballots.entries[source].get(proposal.digest)
        is_held = entry is not None and proposal.tokens[:1] == (entry.token,)
        is_request = not proposal.tokens and proposal.digest == self._log.prefix.digest
        return [self._follow(proposal)] if is_held or is_request else []

    def go_on(self, waited_s: float) -> list[Send]:
        """Ask for a vote without a proposal. waited_s: since the last commit."""
        prefix = self._log.prefix
        is_due = self._routes.follows_proposals and self._log.is_known and waited_s > PATIENCE_S
        if not is_due or prefix.digest in self._ballots.own or self._asked == prefix.digest:
            return []
        self._asked = prefix.digest
        return [self._follow(self._make_request())]

    def make_again(self) -> Iterator[Send]:
        """For a decoder that was restarted, or may lack a part."""
        self._asked = b""
        if not self._routes.follows_proposals:
            return
        for drafter in self._roles.drafters:
            party = self._roles.topology.index(drafter)
            for proposal in make_proposals(self._ballots.entries[drafter], party):
                yield self._follow(proposal)

    def _make_request(self) -> Proposal:
        prefix = self._log.prefix
        drafter = self._roles.topology.index(self._roles.drafters[0])
        return Proposal(
            party=drafter,
            step=len(prefix),
            digest=prefix.digest,
            tokens=(),
            payloads=(),
            log_weights=(),
            decode_us=0,
        )

    def _follow(self, proposal: Proposal) -> Send:
        return Send("decoder", Follow(session=self._session, proposal=proposal))
