"""FlexSpec's rule for the length of proposals, as it is printed."""

from __future__ import annotations

from itertools import product

from tandem.plugins.papers.flexspec import printed_length
from tandem.scheduler.lengths import MAX_LENGTH, RoundCosts, throughputs


def test_the_printed_rule_knows_two_lengths_only() -> None:
    """FlexSpec's Algorithm 2 takes 1 or the longest, and loses up to a third of the speed."""
    worst = 1.0
    for rate, fixed_s, token_s in product((0.4, 0.6, 0.8, 0.9), [0.06, 0.1, 0.19, 0.34], [0.0105, 0.027]):
        costs = RoundCosts(fixed_s=fixed_s, token_s=token_s, alone_s=10.0)
        printed = printed_length(rate, costs)
        assert printed == (MAX_LENGTH if rate * fixed_s > token_s else 1)
        speeds = throughputs([rate] * MAX_LENGTH, costs)
        worst = min(worst, speeds[printed] / max(speeds))
    assert worst < 0.7
