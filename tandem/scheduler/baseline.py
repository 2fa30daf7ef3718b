"""The paper's random baseline: each step's aggregator is drawn anew (DRAGON 7.4).

A function of (seed, step), so a run can be repeated. Knows nothing of speed.
"""

from __future__ import annotations

from tandem.aggregation.randomness import Purpose, uniform
from tandem.topology import Party


def random_party(seed: int, step: int) -> Party:
    """Who decides `step`: each side with probability 1/2, independently of all other steps."""
    return Party.DEVICE if uniform(seed, Purpose.PLACEMENT, step) < 0.5 else Party.CLOUD
