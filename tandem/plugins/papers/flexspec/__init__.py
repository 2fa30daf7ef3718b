"""FlexSpec: drafters made from a target, of a frozen trunk and a head that learns; and its lengths of proposals.

`tandem model draft` makes such a drafter, an ordinary model's folder. How drafts are sent and verified is the preset
`flexspec`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, repeat
from operator import mul

from tandem.plugins.papers.rounds import FIRST_LENGTH, Rounds


def tokens_per_s(rate: float, fixed_s: float, token_s: float, max_length: int) -> list[float]:
    """Committed tokens per second, by the length of proposals, [max_length + 1].

    NOT in the paper: a round is worth 1 + a + ... + a^K tokens for an acceptance rate a. The count of
    FlexSpec Algorithm 2, 1 + a K, makes either 1 or the longest length best in every situation.
    """
    worth = accumulate(accumulate(repeat(rate, max_length), mul), initial=1.0)
    return [tokens / (fixed_s + length * token_s) for length, tokens in enumerate(worth)]


class BestLength:
    """The length with the most tokens per second, from 1 up, for the pacing stop_and_wait."""

    def __init__(self, max_length: int, rounds: Callable[[], Rounds] = Rounds) -> None:
        """max_length: tokens of a proposal, at most. rounds: makes what measures."""
        self._max_length = max_length
        self._rounds = rounds()

    def choose(self) -> int:
        """A few until times are known; the shortest of equals."""
        rounds = self._rounds
        rounds.begin()
        if not rounds.is_known:
            return min(FIRST_LENGTH, self._max_length)
        speeds = tokens_per_s(rounds.rate, rounds.fixed_s, rounds.token_s, self._max_length)
        return speeds.index(max(speeds[1:]), 1)

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """Measures the round."""
        self._rounds.end(length, num_accepted, draft_s)
