"""The paper's random baseline: each step's aggregator is drawn anew (DRAGON 7.4).

A function of (seed, step), so a run can be repeated. Knows nothing of speed.
"""

from __future__ import annotations

from tandem.aggregation.randomness import Purpose, uniform
from tandem.side import Side


def random_side(seed: int, step: int) -> Side:
    """Who decides `step`: each side with probability 1/2, independently of all other steps."""
    return Side.DEVICE if uniform(seed, Purpose.PLACEMENT, step) < 0.5 else Side.CLOUD
