"""How many frames may be on their way to a peer: a link that is full makes the next one wait for its turn here.

A frame that waits here can still grow; in the socket, or in the link's own queue, it cannot. As in TCP Vegas (Brakmo
and Peterson 1995) a queue shows in round trips that take longer than the quickest one.
"""

from __future__ import annotations

from math import inf, isnan

FIRST_FRAMES = 8
"""Before any frame was echoed; TCP has 10 packets (RFC 6928)."""
QUEUED_FRAMES = 4
"""Over a link with a queue. At 10 kbit/s they take as long as a round trip with the wait for a receipt, so that the
link is not idle; on a faster one that has a queue from other traffic, what waits goes out with the next one."""
QUEUE_S = 0.1
"""Beyond the quickest round trip: about a frame at 10 kbit/s, and more than a busy machine takes to answer."""
FORGET_SHARE = 1 / 64
"""By how much of its difference from each later sample the quickest round trip grows: routes change."""


class LinkRoom:
    """How many frames of one query a link takes before they queue, by the round trips of all queries.

    Invariant: the limit grows only where as many frames as half of it were on their way without a queue.
    """

    def __init__(self) -> None:
        self.num_frames = FIRST_FRAMES
        self._quickest_s = inf

    def observe(self, num_on_way: int, rtt_s: float) -> None:
        """A frame that made it so many on their way took this round trip."""
        grown_s = self._quickest_s + FORGET_SHARE * (rtt_s - self._quickest_s)
        self._quickest_s = rtt_s if self._quickest_s == inf else min(rtt_s, grown_s)
        if rtt_s - self._quickest_s >= QUEUE_S:
            self.num_frames = QUEUED_FRAMES
        else:
            self.num_frames = max(self.num_frames, 2 * num_on_way)


class SendWindow:
    """The frames to one peer in one session that no echo has shown to have arrived."""

    def __init__(self) -> None:
        self.room = LinkRoom()  # a table gives all queries of a link the same
        self._num_sent = self._last_echoed = 0
        self._sent: dict[
            int, tuple[int, int]
        ] = {}  # by stamp: place among all frames, and frames on their way then

    @property
    def num_on_way(self) -> int:
        """Frames that were sent after the last one that was echoed."""
        return self._num_sent - self._last_echoed

    @property
    def is_full(self) -> bool:
        """Whether another frame should wait."""
        return self.num_on_way >= self.room.num_frames

    def send(self, stamp: int) -> None:
        """A frame goes out."""
        self._num_sent += 1
        self._sent[stamp] = self._num_sent, self.num_on_way

    def receive(self, stamp: int, rtt_s: float) -> None:
        """A frame of the peer echoes this stamp. rtt_s: the round trip that it shows; nan: none."""
        place, num_on_way = self._sent.get(stamp, (0, 0))
        self._last_echoed = max(self._last_echoed, place)
        if not isnan(rtt_s):
            self.room.observe(num_on_way, rtt_s)
