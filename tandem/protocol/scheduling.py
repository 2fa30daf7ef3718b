"""One session's scheduler: the profiler's estimates in, the party that should aggregate next out.

Each party has one. It tells its own aggregator where to hand over once a remote draft is rejected. The advice stands
until the next one, also while the other party aggregates. No token ever waits for it.
"""

from __future__ import annotations

from tandem.protocol.messages import Estimate, Placement, Profile
from tandem.protocol.outbox import Send
from tandem.protocol.spec import SessionSpec
from tandem.scheduler.assume import fill_gaps
from tandem.scheduler.policies import Policy, make_policy
from tandem.topology import Party


def policy_of(spec: SessionSpec) -> Policy:
    """The placement policy that a query asks for."""
    return make_policy(spec.placement, first=spec.first_aggregator)


class SchedulingSession:
    """Decides the placement of one query."""

    def __init__(self, spec: SessionSpec, party: Party, policy: Policy | None = None) -> None:
        """policy: default the one that the query asks for."""
        self.spec = spec
        self.party = party
        self._policy = policy or policy_of(spec)

    def observe(self, profile: Profile) -> list[Send]:
        """Take in estimates: an Estimate for the client and, if the policy gives advice, a Placement.

        The advice is repeated with every profile, since the aggregator may have restarted.
        """
        situation, assumed = fill_gaps(
            {Party.DEVICE: profile.device_decode_s, Party.CLOUD: profile.cloud_decode_s},
            {Party.DEVICE: profile.device_acceptance, Party.CLOUD: profile.cloud_acceptance},
            profile.rtt_s,
        )
        estimate = Estimate(
            session=self.spec.session,
            profile=profile,
            delta_z_s=situation.delta_z_s,
            chosen=self._policy.advise(situation, profile.aggregator) or profile.aggregator,
            assumed=(*profile.notes, *assumed),
        )
        sends = [Send("draft_queue", estimate)]
        advice = self._policy.advise(situation, self.party)
        if advice is not None:
            sends.append(Send("aggregator", Placement(session=self.spec.session, aggregator=advice)))
        return sends
