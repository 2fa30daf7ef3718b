"""Coupled drafts: drafts and target are the winners of one race with shared noise.

The method is that of Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative
decoding" (arXiv 2408.07978). NOT in the paper (DRAGON). Ours is its use between parties that all draft and all vote:
nobody waits for a verdict, since whoever holds the same distributions and the seed finds the same target.

argmax_i [log q_i + G_i] with Gumbel noise G_i is argmax_i q_i / E_i with exponential E_i = exp(-G_i): the first
arrival of independent exponential clocks with rates q_i, hence an exact draw from q. Since the noise of a token does
not depend on the distribution, two similar distributions mostly pick the same winner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.lazy_race import lazy_race
from tandem.aggregation.randomness import Purpose, exponentials

MANY = 4096
"""Tokens of a whole vocabulary from which the race is run without a logarithm for each."""


def noise(seed: int, step: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exponential clocks of one step at the given tokens, [n]; the same for every distribution and party."""
    return exponentials(seed, Purpose.COUPLED, step, ids)


def race(distribution: Distribution, clocks: NDArray[np.float64]) -> int:
    """The token that wins the race, argmax_i q_i / E_i; clocks: E at the ids of the distribution, [n].

    The distribution has no rest: `Distribution.spread` gives every token its own probability. Ties go to the lowest id.
    IEEE 754 fixes how a division rounds, so the winner is the same on every machine.
    """
    return int(distribution.ids[np.argmax(distribution.probabilities / clocks)])


def coupled_draw(distribution: Distribution, *, seed: int, step: int) -> int:
    """An exact draw from the distribution, as a function of (distribution, seed, step) alone."""
    distribution = distribution.spread()
    if distribution.ids.size >= MANY and int(distribution.ids[-1]) == distribution.ids.size - 1:
        return lazy_race(distribution.probabilities, seed=seed, step=step)  # the same winner, and faster
    return race(distribution, noise(seed, step, distribution.ids))
