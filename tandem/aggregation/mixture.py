"""The target distribution: how much each party counts, and the mixture of the two distributions (Eq. 4, Appendix A.1).

Bit-identical on every machine: no libm, sums in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tandem.aggregation.distributions import Distribution, mix
from tandem.aggregation.portable import exp_scalar
from tandem.errors import ProtocolError


def shares(log_weight_device: float, log_weight_cloud: float) -> tuple[float, float]:
    """Shares (eta of the device, eta of the cloud) from the parties' log-sum-exp weights (Appendix A.1).

    A party without documents has -inf and share 0; if neither has any, each counts half. The smaller share is one
    minus the larger, both exact, so the pair sums to 1 exactly and swapping the parties swaps the pair. Raises
    ProtocolError on NaN or +inf, which no party may send.
    """
    for log_weight in (log_weight_device, log_weight_cloud):
        if math.isnan(log_weight) or log_weight == math.inf:
            raise ProtocolError(
                f"A log weight must be finite or -inf, got {log_weight}; restart the party that sent it."
            )
    if log_weight_device == log_weight_cloud:  # both -inf included
        return 0.5, 0.5
    larger = 1.0 / (1.0 + exp_scalar(-abs(log_weight_device - log_weight_cloud)))
    smaller = 1.0 - larger
    return (larger, smaller) if log_weight_device > log_weight_cloud else (smaller, larger)


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
