"""FlexSpec: drafters made from a target, of a frozen trunk and a head that learns; and its rule for lengths as printed.

`tandem draft train` makes such a drafter, an ordinary model's folder. How drafts are sent and verified is the preset
`flexspec`.
"""

from __future__ import annotations

from tandem.scheduler.lengths import MAX_LENGTH, RoundCosts


def printed_length(rate: float, costs: RoundCosts, max_length: int = MAX_LENGTH) -> int:
    """FlexSpec Algorithm 2 as printed, for comparison: 1 + rate * K tokens per round, K from 1."""
    return max(
        range(1, max_length + 1), key=lambda length: ((1.0 + rate * length) / costs.round_s(length), -length)
    )
