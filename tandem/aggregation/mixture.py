"""The target distribution: how much each party counts, and the mixture of their distributions (Eq. 4, Appendix A.1).

Bit-identical on every machine: no libm, sums in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tandem.aggregation.distributions import Distribution, mix
from tandem.aggregation.portable import exp_scalar
from tandem.errors import ProtocolError


def shares(*log_weights: float) -> tuple[float, ...]:
    """The share eta of each party from the parties' log-sum-exp weights, one or more (Appendix A.1).

    A party without documents has -inf and share 0; if nobody has any, all count the same. Of two parties the smaller
    share is one minus the larger, both exact, so the pair sums to 1 exactly and swapping the parties swaps the pair. Of
    more the sum runs in the given order. Raises ProtocolError on NaN or +inf, which no party may send.

    NOT in the paper (DRAGON): more than two parties.
    """
    for log_weight in log_weights:
        if math.isnan(log_weight) or log_weight == math.inf:
            raise ProtocolError(
                f"A log weight must be finite or -inf, got {log_weight}; restart the party that sent it."
            )
    largest = max(log_weights)
    if min(log_weights) == largest:  # all -inf included
        return (1.0 / len(log_weights),) * len(log_weights)
    if len(log_weights) == 2:
        larger = 1.0 / (1.0 + exp_scalar(min(log_weights) - largest))
        return (larger, 1.0 - larger) if log_weights[0] == largest else (1.0 - larger, larger)
    weights = [exp_scalar(log_weight - largest) for log_weight in log_weights]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def target_distribution(device: Distribution, cloud: Distribution, eta_device: float) -> Distribution:
    """p = eta^device q^device + eta^cloud q^cloud (Eq. 4), on the union of both supports.

    eta_device: share of the device in [0, 1]; the cloud has the rest. The device's term is added first.
    """
    return mix(device, cloud, eta_device)


def mix_by_weights(distributions: Sequence[Distribution], weights: Sequence[float]) -> Distribution:
    """The target of voters with fixed weights of sum 1: their distributions' mixture, summed in the given order."""
    spread = [distribution.spread() for distribution in distributions]
    ids = np.unique(np.concatenate([distribution.ids for distribution in spread]))
    target = weights[0] * spread[0].on(ids)
    for weight, distribution in zip(weights[1:], spread[1:], strict=True):
        target = target + weight * distribution.on(ids)
    return Distribution(ids, target)
