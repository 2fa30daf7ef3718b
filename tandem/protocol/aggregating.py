"""One session as an aggregator sees it: a ballot in, a result out.

It keeps nothing between steps but the scheduler's last advice on placement, so a restarted aggregator decides the
same tokens.
"""

from __future__ import annotations

from math import nan

from tandem.aggregation.mixture import shares
from tandem.aggregation.rules import draft_rule
from tandem.codecs import Codec
from tandem.protocol.messages import Ballot, Proposal, SoloBallot, VerifyResult
from tandem.protocol.scheduling import policy_of
from tandem.protocol.spec import SessionSpec
from tandem.scheduler.policies import Policy
from tandem.topology import Party


class AggregatorSession:
    """Decides the steps of one query."""

    def __init__(self, spec: SessionSpec, party: Party, codec: Codec, policy: Policy | None = None) -> None:
        """policy: default the one that the query asks for."""
        self.spec = spec
        self.party = party
        self._policy = policy or policy_of(spec)
        self._advice: Party | None = None  # of the scheduler: who is to aggregate after a remote rejection
        self._codec = codec
        self._rule = draft_rule(spec.draft_rule, spec.sampling.temperature)

    def decide(self, ballot: Ballot) -> VerifyResult:
        """Algorithm 1 or the coupled race on the two decoded distributions (Eq. 4)."""
        eta_device, _ = shares(ballot.device.log_weight, ballot.cloud.log_weight)
        decision = self._rule.verify(
            self._codec.decode(ballot.device.payload, self.spec.vocab_size),
            self._codec.decode(ballot.cloud.payload, self.spec.vocab_size),
            eta_device=eta_device,
            seed=self.spec.seed,
            step=ballot.device.step,
        )
        remote_accepted = decision.cloud_accepted if self.party is Party.DEVICE else decision.device_accepted
        return VerifyResult(
            session=ballot.session,
            view=ballot.view,
            digest=ballot.device.digest,
            step=ballot.device.step,
            target=decision.target,
            device_accepted=decision.device_accepted,
            cloud_accepted=decision.cloud_accepted,
            device_acceptance=decision.acceptance_device,
            cloud_acceptance=decision.acceptance_cloud,
            next_aggregator=self._policy.choose_next(
                ballot.device.step + 1, self.party, remote_accepted=remote_accepted, advice=self._advice
            ),
        )

    def decide_solo(self, ballot: SoloBallot) -> VerifyResult:
        """Without the peer the token drawn from the own proposal is the target."""
        proposal: Proposal = ballot.proposal
        distribution = self._codec.decode(proposal.payload, self.spec.vocab_size)
        target = self._rule.draft(distribution, seed=self.spec.seed, step=proposal.step, party=proposal.party)
        return VerifyResult(
            session=ballot.session,
            view=ballot.view,
            digest=proposal.digest,
            step=proposal.step,
            target=target,
            device_accepted=proposal.party is Party.DEVICE,
            cloud_accepted=proposal.party is Party.CLOUD,
            device_acceptance=nan,
            cloud_acceptance=nan,
            next_aggregator=self.party,
        )

    def advise(self, aggregator: Party) -> None:
        """Who is to aggregate after a rejection of the remote draft; holds until the next advice."""
        self._advice = aggregator
