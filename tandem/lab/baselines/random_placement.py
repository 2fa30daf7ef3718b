"""The paper's random baseline: each step's aggregator is drawn (DRAGON 7.4).

A function of (seed, step), so a run can be repeated.
"""

from __future__ import annotations

from tandem.aggregation.randomness import Purpose, uniform
from tandem.protocol.aggregating import AggregatorSession
from tandem.protocol.session_tables import AggregatingTable
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party


def random_party(seed: int, step: int) -> Party:
    """Who decides `step`: each side with probability 1/2, independently of all other steps."""
    return Party.DEVICE if uniform(seed, Purpose.PLACEMENT, step) < 0.5 else Party.CLOUD


class RandomAggregatorSession(AggregatorSession):
    """Adds the placement "random"."""

    def next_aggregator(self, step: int, remote_accepted: bool) -> Party:
        """Who decides `step`: a draw under "random"."""
        if self.spec.placement == "random":
            return random_party(self.spec.seed, step)
        return super().next_aggregator(step, remote_accepted)


class RandomAggregatingTable(AggregatingTable):
    """An aggregator's sessions, with the placement "random"."""

    def _open(self, spec: SessionSpec) -> AggregatorSession:
        return RandomAggregatorSession(spec, self.party, self.codec)
