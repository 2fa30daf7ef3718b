"""One TCP connection between a device and a cloud by a virtual clock: when do frames arrive, and in how many bytes.

The link sends packets one after the other in each direction. An acknowledgement travels with a frame if one goes back
in time, else as a packet of its own. Knows nothing of tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Literal

Way = Literal["up", "down"]

ACK_BYTES = 66.0
"""Of an acknowledgement by itself: TCP, IP and Ethernet."""
ACK_S = 0.04
"""Linux waits so long for a frame that it can travel with."""


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def at(self, at_s: float, event: Callable[[], None]) -> None:
        """Let this happen then; of events at the same time the first one that was asked for is first."""
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def step(self) -> None:
        """The next event. There must be one."""
        self.now_s, _, event = heapq.heappop(self._events)
        event()


class Connection:
    """Both directions of one connection."""

    def __init__(self, clock: Clock, link: Callable[[], tuple[float, float]]) -> None:
        """link: the round trip in seconds and the bits per second each way, now."""
        self.num_bytes: dict[Way, float] = {"up": 0.0, "down": 0.0}
        self._clock, self._link = clock, link
        self._free_s: dict[Way, float] = {"up": 0.0, "down": 0.0}  # when the last packet is out
        self._num_owed: dict[Way, int] = {
            "up": 0,
            "down": 0,
        }  # frames without an acknowledgement, by its direction

    def send(self, way: Way, num_bytes: float, event: Callable[[], None]) -> None:
        """A frame with all headers; `event` happens when it has arrived."""
        self._num_owed[way] = 0
        arrives_s = self._transmit(way, num_bytes)
        self._clock.at(arrives_s, lambda: self._arrive(way, event))

    def _transmit(self, way: Way, num_bytes: float) -> float:
        """Behind what is still being sent; returns when it arrives."""
        rtt_s, bits_per_s = self._link()
        self.num_bytes[way] += num_bytes
        self._free_s[way] = max(self._clock.now_s, self._free_s[way]) + 8 * num_bytes / bits_per_s
        return self._free_s[way] + rtt_s / 2

    def _arrive(self, way: Way, event: Callable[[], None]) -> None:
        back: Way = "down" if way == "up" else "up"
        self._num_owed[back] += 1
        if self._num_owed[back] == 1:
            self._clock.at(self._clock.now_s + ACK_S, lambda: self._acknowledge(back))
        event()

    def _acknowledge(self, way: Way) -> None:
        if self._num_owed[way]:
            self._num_owed[way] = 0
            self._transmit(way, ACK_BYTES)
