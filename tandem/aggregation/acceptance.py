"""Acceptance rates: the probability that a party's draft equals the target, by the formula of each draft rule.

Expected values given the distributions, whatever was actually drawn; the profiler averages them.
"""

from __future__ import annotations

import numpy as np

from tandem.aggregation.distributions import Distribution, union


def speculative_acceptance(own: Distribution, other: Distribution, own_share: float) -> float:
    """Acceptance rate of `own` under Algorithm 1 (Eq. 5 with gamma = 1/2).

    alpha = 1/2 (1 - eta^o delta) + 1/2 sum_x q^s(x) p(x), delta = 1 - sum_x min(q^s, q^o). own_share: eta^s.
    """
    own, other = own.spread(), other.spread()
    ids = union(own, other)
    q, q_other = own.on(ids), other.on(ids)
    p = own_share * q + (1.0 - own_share) * q_other
    delta = 1.0 - float(np.minimum(q, q_other).sum())
    return 0.5 * (1.0 - (1.0 - own_share) * delta) + 0.5 * float((q * p).sum())


def coupled_acceptance(draft: Distribution, target: Distribution) -> float:
    """Probability that two distributions raced with shared clocks have the same winner.

    alpha = sum_i 1 / sum_j max(q_j / q_i, p_j / p_i) over i with q_i, p_i > 0 (Moulton and Jiang, "Maximally consistent
    sampling and the Jaccard index of probability distributions", arXiv 1809.04052; NOT in the paper): token i wins both
    races iff its clock rings before every other one scaled by that maximum. Sorted by q/p the inner sum splits into a
    tail of q and a head of p: n log n operations, not n^2. With delta = TV(q, p), alpha is between
    (1 - delta) / (1 + delta) and 1 - delta (Daliri, Musco and Suresh, arXiv 2408.07978).
    """
    draft, target = draft.spread(), target.spread()
    ids = union(draft, target)
    q, p = draft.on(ids), target.on(ids)
    # Ascending angle p -> q instead of q/p, which would divide by zero.
    total = q + p
    alive = total > 0.0
    q, p, total = q[alive], p[alive], total[alive]
    order = np.argsort(q / total)
    q, p = q[order], p[order]
    head_p = np.cumsum(p) - p  # tokens before i: p_j / p_i is the larger
    tail_q = np.cumsum(q[::-1])[::-1]  # i and the tokens after: q_j / q_i is
    both = (q > 0.0) & (p > 0.0)
    q, p, head_p, tail_q = q[both], p[both], head_p[both], tail_q[both]
    return min(1.0, float((1.0 / (tail_q / q + head_p / p)).sum()))
