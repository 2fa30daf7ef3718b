"""Coupled drafts: drafts and target are won in one race with shared noise. NOT in the paper, ours.

argmax_i [log q_i + G_i] with Gumbel noise G_i is argmax_i q_i / E_i with exponential E_i = exp(-G_i): the
first arrival of independent exponential clocks with rates q_i, hence an exact draw from q. Since the noise
of a token does not depend on the law, two laws that are alike mostly pick the same winner. Knows nothing of
sides: the same function gives both drafts and the target.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.randomness import Purpose, exponentials


def noise(seed: int, step: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exponential clocks of one step at the given tokens, [n]; the same for every law and side."""
    return exponentials(seed, Purpose.COUPLED, step, ids)


def race(distribution: Distribution, clocks: NDArray[np.float64]) -> int:
    """The token that wins the race, argmax_i q_i / E_i; clocks: E at the ids of the law, [n].

    Ties go to the lowest id. A division is rounded alike everywhere, so the winner is the same everywhere.
    """
    return int(distribution.ids[np.argmax(distribution.probabilities / clocks)])


def coupled_draw(distribution: Distribution, *, seed: int, step: int) -> int:
    """An exact draw from the law that is a function of (law, seed, step) alone."""
    return race(distribution, noise(seed, step, distribution.ids))
