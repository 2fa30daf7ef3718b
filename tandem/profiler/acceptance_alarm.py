"""Notices that a drafter's tokens are accepted much less often than they used to be.

The answers of a drafter without a vote stay exact whatever it proposes, so a target that was replaced under it shows in
nothing but time. FlexSpec assumes that a frozen drafter keeps its acceptance; docs/explanation/moving-targets.md has
what it really keeps.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW = 48
"""The last judged tokens, which are compared with those before them."""
MIN_REMEMBERED = 48
"""Judged tokens before the window from which on they count as usual."""
NUM_SIGMAS = 4.5
"""Standard errors that the fall must exceed, so that a rate that was low before does not raise the alarm by chance."""
LOW_SHARE = 0.5
"""Of the usual rate; below it acceptance is low."""


class Fall(NamedTuple):
    """Acceptance of the last tokens, and of those before them, each in [0, 1]."""

    rate: float
    usual_rate: float


class AcceptanceAlarm:
    """What is remembered of one drafter's acceptance, from query to query.

    Invariant: one fall is reported once; what it fell to is the new normal.
    """

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._accepted = self._judged = 0  # of the tokens before the recent ones

    def observe(self, length: int, num_accepted: int) -> Fall | None:
        """A verdict; returns a fall once. length: proposed tokens; num_accepted: before the first rejected one."""
        fall = None
        for position in range(min(num_accepted + 1, length)):
            fall = self._add(position < num_accepted) or fall
        return fall

    def _add(self, is_accepted: bool) -> Fall | None:
        if len(self._recent) == WINDOW:
            self._accepted += self._recent[0]
            self._judged += 1
        self._recent.append(is_accepted)
        if len(self._recent) < WINDOW or self._judged < MIN_REMEMBERED:
            return None
        fall = Fall(sum(self._recent) / WINDOW, self._accepted / self._judged)
        variance = fall.usual_rate * (1 - fall.usual_rate) * (1 / WINDOW + 1 / self._judged)
        is_certain = fall.usual_rate - fall.rate > NUM_SIGMAS * variance**0.5
        if fall.rate >= LOW_SHARE * fall.usual_rate or not is_certain:
            return None
        self._accepted = self._judged = 0
        self._recent.clear()
        return fall
