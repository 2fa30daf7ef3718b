"""What a policy of lengths measures by itself: how often a proposed token is accepted, and how long a round takes.

A round proposes K tokens and commits those that are accepted and one more. It lasts fixed_s + K * token_s
(FlexSpec Eq. 7 to 10); what grows with K is the drafting here, since ids take few bytes. One proposal is on its way at
a time.
NOT in the papers: the rate is that of the tokens that were decided, up to the first rejected one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isnan, nan

FIRST_LENGTH = 4
"""Tokens of a proposal before anything is known."""
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 2.0
"""Before any verdict, as if so many tokens had been decided with that rate."""
KEPT_SHARE = 0.98
"""What remains of earlier evidence per decided token: about 50 count."""
TIME_SHARE = 0.2
"""Weight of a new time in the moving averages."""
MIN_S = 1e-6
"""Times are at least this, or the ratio of two would have no bound."""


class Rounds:
    """The rounds of one query. Times are nan until two rounds have ended; the first one waits for documents, too."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """now_s: the clock."""
        self._now_s = now_s
        self._begun_s = nan
        self._accepted, self._decided = PRIOR_RATE * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._has_ended = False
        self.fixed_s = self.token_s = nan

    @property
    def rate(self) -> float:
        """Probability that a token is accepted if those before it in its proposal are."""
        return self._accepted / self._decided

    @property
    def is_known(self) -> bool:
        """Whether times are known."""
        return not isnan(self.fixed_s)

    def begin(self) -> None:
        """A proposal is drafted from now on."""
        self._begun_s = self._now_s()

    def end(self, length: int, num_accepted: int, draft_s: float) -> None:
        """A verdict, as of `LengthPolicy.observe`."""
        for position in range(min(num_accepted + 1, length)):
            self._accepted = KEPT_SHARE * self._accepted + (position < num_accepted)
            self._decided = KEPT_SHARE * self._decided + 1.0
        if self._has_ended and length:
            lasted_s = self._now_s() - self._begun_s
            self.fixed_s = _average(self.fixed_s, max(lasted_s - draft_s, MIN_S))
            self.token_s = _average(self.token_s, max(draft_s / length, MIN_S))
        self._has_ended = True


def _average(before: float, value: float) -> float:
    return value if isnan(before) else before + TIME_SHARE * (value - before)
