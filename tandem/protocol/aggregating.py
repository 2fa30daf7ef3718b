"""One session as an aggregator sees it: a pair of drafts in, a decision out.

It keeps nothing between steps but the scheduler's last advice on placement, so a restarted aggregator decides the
same tokens. Knows nothing of the link, Ray or clocks.
"""

from __future__ import annotations

from math import nan

from tandem.aggregation.mixture import shares
from tandem.aggregation.rules import draft_rule
from tandem.codecs.top_p import Codec
from tandem.protocol.messages import Ballot, Proposal, SoloBallot, VerifyResult
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party


class AggregatorSession:
    """Decides the steps of one query."""

    def __init__(self, spec: SessionSpec, party: Party, codec: Codec) -> None:
        self.spec = spec
        self.party = party
        self._advice: Party | None = None  # of the scheduler: who shall aggregate after a remote rejection
        self._codec = codec
        self._rule = draft_rule(spec.draft_rule, spec.temperature)

    def decide(self, pair: Ballot) -> VerifyResult:
        """Algorithm 1 or the coupled race on the two decoded laws (Eq. 4)."""
        eta_device, _ = shares(pair.device.log_weight, pair.cloud.log_weight)
        found = self._rule.verify(
            self._codec.decode(pair.device.payload),
            self._codec.decode(pair.cloud.payload),
            eta_device=eta_device,
            seed=self.spec.seed,
            step=pair.device.step,
        )
        remote_accepted = found.cloud_accepted if self.party is Party.DEVICE else found.device_accepted
        return VerifyResult(
            session=pair.session,
            view=pair.view,
            digest=pair.device.digest,
            step=pair.device.step,
            target=found.target,
            device_accepted=found.device_accepted,
            cloud_accepted=found.cloud_accepted,
            device_acceptance=found.acceptance_device,
            cloud_acceptance=found.acceptance_cloud,
            next_aggregator=self.next_aggregator(pair.device.step + 1, remote_accepted),
        )

    def decide_alone(self, lone: SoloBallot) -> VerifyResult:
        """The peer is lost: the own draft is the target."""
        draft: Proposal = lone.draft
        distribution = self._codec.decode(draft.payload)
        target = self._rule.draft(distribution, seed=self.spec.seed, step=draft.step, party=draft.party)
        return VerifyResult(
            session=lone.session,
            view=lone.view,
            digest=draft.digest,
            step=draft.step,
            target=target,
            device_accepted=draft.party is Party.DEVICE,
            cloud_accepted=draft.party is Party.CLOUD,
            device_acceptance=nan,
            cloud_acceptance=nan,
            next_aggregator=self.party,
        )

    def advise(self, aggregator: Party) -> None:
        """Who shall aggregate after a rejection of the remote draft, from the scheduler; until told otherwise."""
        self._advice = aggregator

    def next_aggregator(self, step: int, remote_accepted: bool) -> Party:
        """Who decides `step`; a subclass may follow another policy.

        Greedy hands over only where the other side's draft was rejected: the verdict must go there anyway, and until
        then nothing is lost by staying.
        """
        if self.spec.placement != "greedy":
            return self.spec.first_aggregator
        return self.party if remote_accepted or self._advice is None else self._advice
