"""What a coordinator tells the own decoder to vote on, where votes follow another party's proposal."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.messages import LinkBody, Local, Proposal
from tandem.modes.spec import SessionSpec
from tandem.protocol.ballots import BallotBox
from tandem.protocol.convergence import make_proposals
from tandem.protocol.lifecycle import Lifecycle
from tandem.protocol.log import CommittedLog
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import extend_digest
from tandem.protocol.routes import Routes

PATIENCE_S = 0.5
"""A voter without a proposal votes on the committed prefix after this long: no drafter can stop the answer."""


class Leading:
    """Proposals for the own decoder of a party that votes and does not draft; of another party, nothing.

    Invariants: what the decoder is given is held in the ballot box, or asks for a vote on the committed prefix. A vote
    on that is asked for once.
    """

    def __init__(
        self, spec: SessionSpec, routes: Routes, log: CommittedLog, ballots: BallotBox, lifecycle: Lifecycle
    ) -> None:
        self._session, self._roles = spec.session, spec.roles
        self._routes, self._log, self._ballots, self._lifecycle = routes, log, ballots, lifecycle
        self._asked = b""  # the last prefix that a vote was asked for

    def lead(self, source: str, body: LinkBody) -> list[Send]:
        """What a peer sent has been taken in."""
        if not isinstance(body, Proposal) or not self._routes.follows_proposals:
            return []
        return [self._follow(body)] if self._continues(source, body) else []

    def _continues(self, source: str, proposal: Proposal) -> bool:
        """Whether a proposal goes on behind the committed prefix. Its first tokens may be committed: a bonus was."""
        prefix = self._log.prefix
        num_committed = len(prefix) - proposal.step
        if num_committed < 0:
            return proposal.digest in self._ballots.entries[source]
        digest = proposal.digest
        for token in proposal.tokens[:num_committed]:
            digest = extend_digest(digest, token)
        return num_committed <= len(proposal.tokens) and digest == prefix.digest

    def go_on(self, waited_s: float) -> list[Send]:
        """Ask for a vote without a proposal, at once where nobody proposes. waited_s: since the last commit."""
        prefix = self._log.prefix
        is_wanted = self._routes.follows_proposals and self._lifecycle.reason is None and self._log.is_known
        is_due = is_wanted and (waited_s > PATIENCE_S or self._lifecycle.decides_alone)
        if not is_due or prefix.digest in self._ballots.own or self._asked == prefix.digest:
            return []
        self._asked = prefix.digest
        return [self._follow(self._make_request())]

    def make_again(self) -> Iterator[Send]:
        """For a decoder that was restarted, or may lack a part."""
        self._asked = b""
        yield from self._lifecycle.tell_alone()
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
        return Send("decoder", Local(session=self._session, body=proposal))
