"""One session's scheduler: from the profiler's estimates to the side that shall aggregate next.

Each side has one. It tells its own aggregator where to hand over once a remote draft is rejected; that stands until
it is told otherwise, also while the other side aggregates. It stands beside the path of a token, never on it. Knows
nothing of drafts or frames.
"""

from __future__ import annotations

from tandem.protocol.messages import Estimate, Placement, Profile
from tandem.protocol.outbox import Send
from tandem.protocol.spec import SessionSpec
from tandem.scheduler.assume import situation
from tandem.scheduler.greedy import choose
from tandem.topology import Party


class SchedulerSession:
    """Decides the placement of one query."""

    def __init__(self, spec: SessionSpec, party: Party) -> None:
        self.spec = spec
        self.party = party

    def observe(self, profile: Profile) -> list[Send]:
        """Take new estimates in: an Estimate for whoever watches and, under greedy, a Placement for the aggregator.

        The advice is repeated with every profile, for an aggregator may have been restarted.
        """
        now, assumed = situation(profile)
        is_greedy = self.spec.placement == "greedy"
        chosen = choose(now, profile.aggregator) if is_greedy else profile.aggregator
        estimate = Estimate(
            session=self.spec.session,
            profile=profile,
            delta_z_s=now.delta_z_s,
            chosen=chosen,
            assumed=assumed,
        )
        sends = [Send("draft_queue", estimate)]
        if is_greedy:
            advised = choose(now, self.party)
            sends.append(Send("aggregator", Placement(session=self.spec.session, aggregator=advised)))
        return sends
