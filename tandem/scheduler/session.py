"""One session's scheduler: from the profiler's estimates to the side that shall aggregate next.

The placements here are fixed (`device`, `cloud`, `mirror`); an aggregator hears only of a change.
Knows nothing of drafts or frames.
"""

from __future__ import annotations

from tandem.messages import Placement, Profile
from tandem.protocol.sends import Send
from tandem.protocol.spec import SessionSpec
from tandem.side import Side


class SchedulerSession:
    """Decides the placement of one query."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.aggregator = spec.first_aggregator
        self.last_profile: Profile | None = None

    def observe(self, profile: Profile) -> list[Send]:
        """Take new estimates in; a Placement for the own aggregator where the decision changes."""
        self.last_profile = profile
        chosen = self._choose(profile)
        if chosen is self.aggregator:
            return []
        self.aggregator = chosen
        return [Send("aggregator", Placement(session=self.spec.session, aggregator=chosen))]

    def _choose(self, profile: Profile) -> Side:
        return self.spec.first_aggregator
