"""What the sampling options leave of a distribution, before it is compressed and a token is drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.selection import largest
from tandem.config.sampling import SamplingParams


def restrict(probabilities: NDArray[np.float64], sampling: SamplingParams) -> NDArray[np.float64]:
    """The distribution [vocab] without the tokens that `sampling` drops, renormalised; the same array if it drops none.

    top_k keeps the k most probable tokens, ties to the lowest id. min_p then drops tokens below that share of the
    largest probability (Nguyen et al., arXiv 2407.01082).
    """
    kept = np.ones(probabilities.size, dtype=bool)
    if 0 < sampling.top_k < probabilities.size:
        kept[:] = False
        kept[largest(probabilities, sampling.top_k)] = True
    if sampling.min_p:
        kept &= probabilities >= sampling.min_p * probabilities.max()
    if kept.all():
        return probabilities
    rest = np.where(kept, probabilities, 0.0)
    return np.asarray(rest / rest.sum())
