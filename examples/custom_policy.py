r"""A placement policy of your own: the parties take turns.

Use it:   cd examples; tandem ask "When was the lighthouse on Vey built?" \
              --set decoding.placement=custom_policy:Alternate --set "scheduler.parameters={period = 4}"
"""

# --8<-- [start:policy]
from dataclasses import dataclass

from tandem.scheduler import Situation
from tandem.topology import Party


@dataclass(frozen=True)
class Alternate:
    """Each party decides `period` steps, then the other. Called with `first`, who decides the first step."""

    first: Party
    period: int = 8

    def advise(self, situation: Situation, aggregator: Party) -> Party | None:
        """No advice: this policy does not depend on decode times, acceptance or the round trip."""
        return None

    def choose_next(
        self, step: int, aggregator: Party, *, remote_accepted: bool, advice: Party | None
    ) -> Party:
        """Who decides `step`, after `aggregator` has decided the one before."""
        return self.first if step // self.period % 2 == 0 else self.first.other


# --8<-- [end:policy]
