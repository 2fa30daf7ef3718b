"""The paper's random baseline: each step's aggregator is drawn (DRAGON 7.4)."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.aggregation.coupling import Purpose, uniform
from tandem.modes import SessionSpec
from tandem.protocol.services import AggregatingTable, AggregatorSession
from tandem.scheduler import Situation, load_policy
from tandem.topology import Party

RANDOM = f"{__name__}:make"
"""The name of the placement."""


@dataclass(frozen=True, slots=True)
class Random:
    """A placement policy: a function of (seed, step), so that a run can be repeated."""

    seed: int

    def advise(self, situation: Situation, aggregator: Party) -> Party | None:
        """Never."""
        return None

    def choose_next(
        self, step: int, aggregator: Party, *, remote_accepted: bool, advice: Party | None
    ) -> Party:
        """Each party with probability 1/2, independently of all other steps."""
        return Party.DEVICE if uniform(self.seed, Purpose.PLACEMENT, step) < 0.5 else Party.CLOUD


class RandomAggregatingTable(AggregatingTable):
    """An aggregator's sessions, with the placement RANDOM."""

    def _open(self, spec: SessionSpec) -> AggregatorSession:
        if spec.decoding.placement != RANDOM:
            return super()._open(spec)
        return AggregatorSession(spec, self.party, self.codec, Random(spec.seed))


def make(first: Party) -> Random:
    """For schedulers, which ask it for advice alone."""
    return Random(seed=0)


load_policy(RANDOM, {}, "The laboratory")
