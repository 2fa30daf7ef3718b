"""One session's scheduler: the profiler's estimates in, the party that should aggregate next out.

Each party has one. It tells its own aggregator where to hand over once a remote draft is rejected. The advice stands
until the next one, also while the other party aggregates. No token ever waits for it.
"""

from __future__ import annotations

from tandem.messages import Estimate, Placement, Profile
from tandem.modes.spec import SessionSpec
from tandem.protocol.outbox import Send
from tandem.scheduler.greedy import fill_gaps
from tandem.scheduler.policies import Policy, make_policy
from tandem.topology import PARTIES, Party


def policy_of(spec: SessionSpec) -> Policy:
    """The placement policy that a query asks for."""
    return make_policy(spec.decoding.placement, first=Party(spec.rules.first_decider))


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
            dict(zip(PARTIES, profile.decode_s, strict=True)),
            dict(zip(PARTIES, profile.acceptance, strict=True)),
            profile.rtt_s,
        )
        aggregator = PARTIES[profile.aggregator]
        estimate = Estimate(
            session=self.spec.session,
            profile=profile,
            delta_z_s=situation.delta_z_s,
            chosen=PARTIES.index(self._policy.advise(situation, aggregator) or aggregator),
            assumed=(*profile.notes, *assumed),
        )
        sends = [Send("draft_queue", estimate)]
        advice = self._policy.advise(situation, self.party)
        if advice is not None:
            sends.append(
                Send("aggregator", Placement(session=self.spec.session, aggregator=PARTIES.index(advice)))
            )
        return sends
