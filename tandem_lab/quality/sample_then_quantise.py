"""The wrong order, for the figure: a draft is drawn first and its distribution quantised afterwards (S-Q in QS III-A).

The verifier then checks with q' what was drawn from q. More drafts stand than under the right order, and the committed
token does not follow the target. Everything here is exact: a sum over tokens, no draw.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Outcome(NamedTuple):
    """Of one verified draft."""

    acceptance: float  # probability that the draft stands
    distance: float  # total variation between what is committed and the target


def verify(drawn_from: Floats, checked_with: Floats, target: Floats) -> Outcome:
    """A draft of q, accepted with probability min(1, p/q'), else a token of norm(max(0, p - q')).

    drawn_from: q; checked_with: q', as decoded; target: p; all [vocab], of sum 1. With q = q' this is the rejection
    rule, whose distance is 0. A token that q' lacks stands, as p/0 would say.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        keep = np.where(checked_with > 0, np.minimum(1.0, target / checked_with), 1.0)
    accepted = drawn_from * keep
    left = np.maximum(0.0, target - checked_with)
    total = left.sum()
    corrections = left / total if total > 0 else target
    committed = accepted + (1.0 - accepted.sum()) * corrections
    return Outcome(float(accepted.sum()), float(0.5 * np.abs(committed - target).sum()))
