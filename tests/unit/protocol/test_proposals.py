"""What becomes of a drafter's proposals, by the committed tokens alone; a policy hears of them in transcripts."""

from __future__ import annotations

from itertools import product

from tandem.protocol.ballots import count_accepted, is_open
from tandem.protocol.log import Prefix
from tests.unit.protocol.talk import vote


def test_a_count_agrees_with_the_obvious_one() -> None:
    """All proposals of up to three binary tokens after one token, and all committed tokens of up to five, with a token
    behind them that is not committed."""
    for length, num in product(range(4), range(6)):
        for tokens, committed in product(product((0, 1), repeat=length), product((0, 1), repeat=num)):
            expected: int | None = None
            if num > 1 and committed[0] == 1:
                equal = [one == other for one, other in zip(tokens, committed[1:], strict=False)]
                accepted = equal.index(False) if False in equal else len(equal)
                is_decided = False in equal or accepted == length
                expected = accepted if is_decided else None
            prefix, proposal = Prefix(1, (*committed, 1)), vote((1,), tokens)
            assert count_accepted(proposal, prefix, num) == expected
            is_other = num > 0 and committed[0] != 1
            assert is_open(proposal, prefix, num) == (expected is None and not is_other)
