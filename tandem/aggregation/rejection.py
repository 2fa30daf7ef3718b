"""Speculative aggregation of independent drafts: Algorithm 1, distribution first and draw last.

Every function is deterministic; `draw` turns a distribution and one uniform number into a token.
"""

from __future__ import annotations

import numpy as np

from tandem.aggregation.distributions import Distribution, mix, union


def keep_probability(token: int, own: Distribution, other: Distribution, other_share: float) -> float:
    """Probability that a draft survives Algorithm 1.

    It is 1 - eta^o (1 - q^o(x) / q^s(x)) if q^s(x) > q^o(x), else 1.
    token: the draft x, drawn from `own` = q^s. other: q^o. other_share: eta^o in [0, 1].
    """
    q_own, q_other = own.probability(token), other.probability(token)
    if q_own <= q_other:
        return 1.0
    return 1.0 - other_share * (1.0 - q_other / q_own)


def residual(own: Distribution, other: Distribution) -> Distribution | None:
    """norm(max(0, q^o - q^s)): where a replaced draft is drawn from; None if it has no mass."""
    own, other = own.spread(), other.spread()
    ids = union(own, other)
    excess = np.maximum(0.0, other.on(ids) - own.on(ids))
    has_mass = excess > 0.0
    if not has_mass.any():
        return None
    excess = excess[has_mass]
    return Distribution(ids[has_mass], excess / np.cumsum(excess)[-1])  # cumsum adds in one order everywhere


def result_distribution(
    token: int, own: Distribution, other: Distribution, other_share: float
) -> Distribution:
    """Distribution of one party's result (x tilde) given its draft: the draft if it is kept, else the residual.

    NOT in the paper: a residual without mass (distributions equal up to rounding) keeps the draft.
    """
    draft = Distribution(np.array([token]), np.ones(1))
    rest = residual(own, other)
    if rest is None:
        return draft
    return mix(draft, rest, keep_probability(token, own, other, other_share))


def target_given_drafts(
    device_token: int, cloud_token: int, device: Distribution, cloud: Distribution, eta_device: float
) -> Distribution:
    """Distribution of the target given both drafts: each party's result with probability 1/2 (Algorithm 1)."""
    device_result = result_distribution(device_token, device, cloud, 1.0 - eta_device)
    cloud_result = result_distribution(cloud_token, cloud, device, eta_device)
    return mix(device_result, cloud_result, 0.5)


def draw(distribution: Distribution, u: float) -> int:
    """The token at quantile u of the distribution. u: strictly inside (0, 1), at most 1 - 2**-53.

    Such a u times the total rounds to less than the total, so the index stays inside; `right` skips
    tokens of probability zero.
    """
    distribution = distribution.spread()
    cumulative = np.cumsum(distribution.probabilities)
    return int(distribution.ids[np.searchsorted(cumulative, u * cumulative[-1], side="right")])
