"""Whether a peer is there: how long it has been silent, and how long the answer has waited for what it owes.

Progress, not only silence, tells: a peer that sends heartbeats and acknowledgements, but not the vote or the verdict
that is next, is as good as lost. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

LONGEST_TICK_S = 0.1
"""The time between two ticks counts up to this: twice what lies between those of a side that is awake."""
START_FACTOR = 4
"""Before its first vote a peer may take this many times as long: it may have a waiting list, documents to read and a
model to warm up. No wait is longer than that."""
SLOW_FACTOR = 2
"""A peer that was slow before may be so again, and take this many times as long as it took at most."""
MAX_STALLS = 3
"""After so many a peer is not waited for in this query again, whatever it sends."""


class Stopwatch:
    """How long ago something happened, while this side was awake to notice.

    A process that was suspended, by a laptop's lid or a paused container, runs its timers before it reads what arrived
    meanwhile. Invariant: from one tick to the next the time grows by at most LONGEST_TICK_S.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = self._ticked_s = now_s

    def restart(self, now_s: float) -> None:
        """It happens again."""
        self._since_s = now_s

    def tick(self, now_s: float) -> None:
        """This side is awake. Whatever it missed since the last tick is a stall of its own."""
        stalled_s = max(0.0, now_s - self._ticked_s - LONGEST_TICK_S)
        self._since_s = min(now_s, self._since_s + stalled_s)
        self._ticked_s = now_s

    def length_s(self, now_s: float) -> float:
        """Seconds since then, without stalls of this side."""
        return now_s - self._since_s


class Problem(NamedTuple):
    """Why an answer cannot go on with a peer."""

    sentence: str
    is_stall: bool  # it is heard all the same, so only progress brings it back


class Liveness:
    """Silence and debts of one peer, and whether it is lost.

    Invariants: it owes one thing at a time, the next one, and only while nothing of this side is missing. One that was
    lost by a stall comes back by progress alone, and at most MAX_STALLS - 1 times.
    """

    def __init__(self, now_s: float) -> None:
        self.is_lost = False
        self._is_stalled = False  # it was lost although it was heard
        self._num_stalls = 0
        self._silence, self._wait = Stopwatch(now_s), Stopwatch(now_s)
        self._debt: Hashable = None
        self.has_given = False  # anything that an answer is made of
        self._slowest_s = 0.0  # longest wait that ended

    def hear(self, now_s: float) -> None:
        """A frame of the peer has arrived."""
        self._silence.restart(now_s)

    def tick(self, debt: Hashable, now_s: float) -> None:
        """This side is awake. debt: names what the answer waits for from this peer; None: nothing."""
        self._silence.tick(now_s)
        self._wait.tick(now_s)
        if debt != self._debt:
            if self._debt is not None:
                self._slowest_s = max(self._slowest_s, self._wait.length_s(now_s))
            self._debt = debt
            self._wait.restart(now_s)

    def silence_s(self, now_s: float) -> float:
        """Seconds since the peer was heard."""
        return self._silence.length_s(now_s)

    def waited_s(self, now_s: float) -> float:
        """Seconds for which it has owed the same."""
        return 0.0 if self._debt is None else self._wait.length_s(now_s)

    def stall_limit_s(self, least_s: float, *, has_others_behind: bool = False) -> float:
        """How long it may owe the same: by its own pace so far, from `least_s` to START_FACTOR times that.

        has_others_behind: it may itself be waiting for others, who have as long at most.
        """
        most_s = START_FACTOR * least_s
        own_s = min(max(least_s, SLOW_FACTOR * self._slowest_s), most_s) if self.has_given else most_s
        return own_s + most_s * has_others_behind

    def lose(self, *, is_stall: bool) -> None:
        """It is lost. is_stall: although it is heard."""
        self.is_lost, self._is_stalled, self._debt = True, is_stall, None
        self._num_stalls += is_stall

    def may_return(self, *, makes_progress: bool) -> bool:
        """Whether a frame of a lost peer brings it back."""
        return not self._is_stalled or (makes_progress and self._num_stalls < MAX_STALLS)

    def take_back(self) -> None:
        """It is back."""
        self.is_lost = self._is_stalled = False
