"""What becomes of the proposals of a drafter without a vote, by the committed tokens alone.

A proposed token is accepted if it is the one that was committed.
"""

from __future__ import annotations

from tandem.messages import Vote
from tandem.protocol.prefix import Prefix


def count_accepted(proposal: Vote, prefix: Prefix, num_committed: int) -> int | None:
    """Its tokens before the first rejected one; None: not decided yet, or it continues other tokens.

    prefix: begins with so many committed tokens.
    """
    step, length = proposal.step, len(proposal.tokens)
    if num_committed <= step or prefix.digests[step] != proposal.digest:
        return None
    committed = prefix.tokens[step : min(step + length, num_committed)]
    pairs = zip(proposal.tokens, committed, strict=False)
    num_equal = next((count for count, (one, other) in enumerate(pairs) if one != other), len(committed))
    return num_equal if num_equal < len(committed) or num_equal == length else None


def is_open(proposal: Vote, prefix: Prefix, num_committed: int) -> bool:
    """Whether later tokens can decide it. prefix, num_committed: as above."""
    if num_committed < proposal.step:
        return True
    is_same = prefix.digests[proposal.step] == proposal.digest
    return is_same and count_accepted(proposal, prefix, num_committed) is None
