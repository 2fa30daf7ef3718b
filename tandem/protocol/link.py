"""What one side measures of a link: round trips, bandwidth, room for more frames, and whether the peer is there.

As in TCP Vegas (Brakmo and Peterson 1995) a queue shows in round trips that take longer than the quickest one.

Progress, not only silence, tells: a peer that sends heartbeats and acknowledgements, but not the vote or the verdict
that is next, is as good as lost. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf, isnan, nan
from typing import NamedTuple

from tandem.messages import LinkFrame
from tandem.topology import at_start

MIN_TIMEOUT_S = 0.5
FIRST_TIMEOUT_S = 1.0
"""Before anything is known of the link (RFC 6298, 2.1)."""
MAX_TIMEOUT_S = 4.0
PROBE_BYTES = 1200
"""Padding of the longer of two probes: one packet, since bandwidth matters only where a packet's time can be seen."""
NUM_STAMPS = 127
"""Stamps that one byte of a frame tells apart. Where the echo of an older frame with the same stamp arrives, it was
held for longer than the new frame is out, and nothing is measured."""
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


class RoundTrips:
    """Round trips to one peer, from its echoes, and how many frames are on their way to it.

    Invariant: only this party's own clock is read and no time of day is sent, so the two clocks may differ.
    """

    def __init__(self, now_s: float) -> None:
        self.room = LinkRoom()  # a table gives all queries of a link the same
        self.rtt_s = nan  # last sample
        self.sent_s = now_s  # when the last frame went out
        self._smoothed_s, self._deviation_s = nan, 0.0
        self._num_sent = self._num_echoed = 0  # frames; those up to the last one that was echoed
        # by stamp: when it was sent, its place among all frames, and frames on their way then
        self._sent: dict[int, tuple[float, int, int]] = {}
        self._echo, self._arrived_s = 0, now_s  # stamp of the peer's last frame, and when that arrived
        # stamp of the longer probe until it is echoed, and its round trip
        self._probe, self._probe_s = 0, nan

    @property
    def is_full(self) -> bool:
        """Whether another frame should wait: those sent after the last one that was echoed are enough."""
        return self._num_sent - self._num_echoed >= self.room.num_frames

    @property
    def timeout_s(self) -> float:
        """How long to wait for a receipt, within limits: two round trips, or more where they vary (RFC 6298)."""
        usual_s = FIRST_TIMEOUT_S if isnan(self._smoothed_s) else self._smoothed_s + 4 * self._deviation_s
        return min(max(MIN_TIMEOUT_S, 2 * self.latest_s, usual_s), MAX_TIMEOUT_S)

    @property
    def latest_s(self) -> float:
        """The last sample; 0 before there is one."""
        return 0.0 if isnan(self.rtt_s) else self.rtt_s

    def header(self, now_s: float, *, is_probe: bool) -> tuple[int, int, int]:
        """`stamp`, `echo` and `held_us` of a frame that is sent now. is_probe: the longer of two."""
        stamp = self._num_sent % NUM_STAMPS + 1
        self._num_sent += 1
        self._sent[stamp] = now_s, self._num_sent, self._num_sent - self._num_echoed
        self.sent_s = now_s
        if is_probe or stamp == self._probe:
            self._probe = stamp if is_probe else 0
        held_s = now_s - self._arrived_s if self._echo else 0.0
        return stamp, self._echo, max(0, int(held_s * 1e6))

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in a frame's stamp and echo; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived. The echo says so, or the peer would take the wait for a part of the
        round trip.
        """
        self._echo, self._arrived_s = frame.stamp, now_s - waited_s
        sent_s, place, num_on_way = self._sent.get(frame.echo, (nan, 0, 0))
        self._num_echoed = max(self._num_echoed, place)
        rtt_s = now_s - sent_s - frame.held_us / 1e6
        if not rtt_s >= 0:  # nothing was sent, the stamp has been used again, or the peer's clock jumped
            return nan
        if frame.echo == self._probe:  # the time to send it is included
            self._probe, self._probe_s = 0, rtt_s
            return nan
        self._smooth(rtt_s)
        self.room.observe(num_on_way, rtt_s)
        return rtt_s

    def _smooth(self, rtt_s: float) -> None:
        """A sample, smoothed as TCP does it (RFC 6298, 2)."""
        self.rtt_s = rtt_s
        if isnan(self._smoothed_s):
            self._smoothed_s, self._deviation_s = rtt_s, rtt_s / 2
            return
        self._deviation_s += (abs(self._smoothed_s - rtt_s) - self._deviation_s) / 4
        self._smoothed_s += (rtt_s - self._smoothed_s) / 8

    def take_bytes_per_s(self) -> float:
        """Bandwidth towards the peer in bytes per second (B in DRAGON 5.2), once both probes are answered; else nan.

        inf: the longer probe took no longer.
        """
        if isnan(self._probe_s) or isnan(self.rtt_s):
            return nan
        longer_s, self._probe_s = self._probe_s - self.rtt_s, nan
        return PROBE_BYTES / longer_s if longer_s > 0 else inf


class Backoff:
    """The time to do something again: each wait is twice the one before, up to a limit, until it starts over."""

    def __init__(self, now_s: float, first_s: float, most_s: float) -> None:
        self.extra_s = 0.0  # added to every wait
        self.num_due = 0
        self._first_s, self._most_s = first_s, most_s
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """The wait starts over."""
        self._since_s, self._wait_s = now_s, self._first_s

    def take_due(self, now_s: float, least_s: float = 0.0) -> bool:
        """Whether it is time, after the wait or `least_s`, whichever is longer; then the next wait begins."""
        if now_s - self._since_s < max(self._wait_s, least_s) + self.extra_s:
            return False
        self._since_s, self._wait_s = now_s, min(2 * self._wait_s, self._most_s)
        self.num_due += 1
        return True


LONGEST_TICK_S = 0.1
"""The time between two ticks counts up to this: twice what lies between those of a side that is awake."""
START_FACTOR = 4
"""Before its first vote a peer may take this many times as long: it may have a waiting list, documents to read and a
model to warm up. No wait is longer than that."""
SLOW_FACTOR = 2
"""A peer that was slow before may be so again, and take this many times as long as it took at most."""
MAX_STALLS = 3
"""After so many a peer is not waited for in this query again, whatever it sends."""
_SILENT = "{} has been silent for {:.1f} s; check the link."
_STALLED = "{} is there, but has sent nothing that the answer needs for {:.1f} s; see its log."


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
        """Seconds since then."""
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

    def __init__(self, now_s: float, name: str) -> None:
        self.is_lost = False
        self.has_given = False  # anything that an answer is made of
        self._name = name
        self._is_stalled = False  # it was lost although it was heard
        self._num_stalls = 0
        self._silence, self._wait = Stopwatch(now_s), Stopwatch(now_s)
        self._debt: Hashable = None
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
        """Seconds since the peer was heard, without stalls of this side."""
        return self._silence.length_s(now_s)

    def find_problem(
        self, silence_limit_s: float, stall_s: float, now_s: float, *, has_others_behind: bool = False
    ) -> Problem | None:
        """Why it counts as lost, if so: it is silent, or has owed the same for too long by its own pace so far, from
        `stall_s` to START_FACTOR times that.

        has_others_behind: it may itself be waiting for others, who have as long at most. Over a slow link a wait may
        end before the limit of silence does: a peer that was not heard in the later half of it is silent, too.
        """
        silence_s = self.silence_s(now_s)
        waited_s = 0.0 if self._debt is None else self._wait.length_s(now_s)
        most_s = START_FACTOR * stall_s
        own_s = min(max(stall_s, SLOW_FACTOR * self._slowest_s), most_s) if self.has_given else most_s
        is_stalled = waited_s > own_s + most_s * has_others_behind
        if silence_s > silence_limit_s or (is_stalled and silence_s > waited_s / 2):
            return Problem(_SILENT.format(at_start(self._name), silence_s), is_stall=False)
        if is_stalled:
            return Problem(_STALLED.format(at_start(self._name), waited_s), is_stall=True)
        return None

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
