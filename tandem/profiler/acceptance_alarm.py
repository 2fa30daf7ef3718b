"""Notices that a drafter's tokens are accepted much less often than they used to be.

The answers of a drafter without a vote stay exact whatever it proposes, so a target that was replaced under it shows in
nothing but time. FlexSpec assumes that a frozen drafter keeps its acceptance; docs/explanation/moving-targets.md has
what it really keeps.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW = 48
"""The last judged tokens, which are compared with those before them: at least so many."""
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
        self._recent: deque[bool] = deque()
        self._accepted = self._judged = 0  # of the tokens before the recent ones

    def observe(self, length: int, num_accepted: int) -> Fall | None:
        """A verdict; returns a fall once. length: proposed tokens; num_accepted: before the first rejected one."""
        fall = None
        for position in range(min(num_accepted + 1, length)):
            fall = self._add(position < num_accepted) or fall
        return fall

    def _add(self, is_accepted: bool) -> Fall | None:
        """A judged token. The window grows while acceptance is low, until that is certain or over."""
        self._recent.append(is_accepted)
        while len(self._recent) > WINDOW and not self._is_low():
            self._accepted += self._recent.popleft()
            self._judged += 1
        if len(self._recent) < WINDOW or not self._is_low():
            return None
        size, fall = len(self._recent), self._fall()
        variance = fall.usual_rate * (1 - fall.usual_rate) * (1 / size + 1 / self._judged)
        if fall.usual_rate - fall.rate <= NUM_SIGMAS * variance**0.5:
            return None
        self._accepted = self._judged = 0
        self._recent.clear()
        return fall

    def _fall(self) -> Fall:
        return Fall(sum(self._recent) / len(self._recent), self._accepted / self._judged)

    def _is_low(self) -> bool:
        if self._judged < MIN_REMEMBERED:
            return False
        fall = self._fall()
        return fall.rate < LOW_SHARE * fall.usual_rate
