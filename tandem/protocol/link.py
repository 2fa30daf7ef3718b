"""What one side measures of a link: round trips, bandwidth, room for more frames, and whether the peer is there.

A frame that waits in the send window can still grow; in the socket, or in the link's own queue, it cannot. As in TCP
Vegas (Brakmo and Peterson 1995) a queue shows in round trips that take longer than the quickest one.

Progress, not only silence, tells: a peer that sends heartbeats and acknowledgements, but not the vote or the verdict
that is next, is as good as lost. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf, isnan, nan
from typing import NamedTuple

from tandem.messages import LinkFrame, Verdict, Vote
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol.ballots import is_open
from tandem.protocol.log import MAX_VERDICT_TOKENS, Prefix, join_verdicts

MIN_TIMEOUT_S = 0.5
FIRST_TIMEOUT_S = 1.0
"""Before anything is known of the link (RFC 6298, 2.1)."""
MAX_TIMEOUT_S = 4.0
PROBE_BYTES = 1200
"""Padding of the longer of two probes: one packet, since bandwidth matters only where a packet's time can be seen."""
NUM_STAMPS = 127
"""Stamps that one byte of a frame tells apart. Where the echo of an older frame with the same stamp arrives, it was
held for longer than the new frame is out, and nothing is measured."""


class RoundTrips:
    """Round trips to one peer, from its echoes.

    Invariant: only this party's own clock is read and no time of day is sent, so the two clocks may differ.
    """

    def __init__(self, now_s: float, *, measures: bool = False) -> None:
        """measures: probes are still to be sent."""
        self.rtt_s = nan  # last sample
        self._smoothed_s, self._deviation_s = nan, 0.0
        self.measures = measures
        self.sent_s = now_s  # when the last frame went out
        self._stamp = 0  # of the last frame that was sent
        self._sent_s: dict[int, float] = {}  # by stamp
        self._echo = 0
        self._arrived_s = now_s  # of the frame that is echoed
        self._probes: dict[int, int] = {}  # by stamp: bytes of padding
        self._probed_s: dict[int, float] = {}  # by bytes of padding: the round trip

    @property
    def timeout_s(self) -> float:
        """How long to wait for a receipt, within limits: two round trips, or more where they vary (RFC 6298)."""
        usual_s = FIRST_TIMEOUT_S if isnan(self._smoothed_s) else self._smoothed_s + 4 * self._deviation_s
        return min(max(MIN_TIMEOUT_S, 2 * self.latest_s, usual_s), MAX_TIMEOUT_S)

    @property
    def latest_s(self) -> float:
        """The last sample; 0 before there is one."""
        return 0.0 if isnan(self.rtt_s) else self.rtt_s

    def header(self, now_s: float) -> tuple[int, int, int]:
        """`stamp`, `echo` and `held_us` of a frame that is sent now."""
        self._stamp = self._stamp % NUM_STAMPS + 1
        self._sent_s[self._stamp] = self.sent_s = now_s
        self._probes.pop(self._stamp, None)
        held_s = now_s - self._arrived_s if self._echo else 0.0
        return self._stamp, self._echo, max(0, int(held_s * 1e6))

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in a frame's stamp and echo; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived. The echo says so, or the peer would take the wait for a part of the
        round trip.
        """
        self._echo, self._arrived_s = frame.stamp, now_s - waited_s
        if frame.echo not in self._sent_s:
            return nan
        rtt_s = now_s - self._sent_s[frame.echo] - frame.held_us / 1e6
        if rtt_s < 0:  # the stamp has been used again, or the peer's clock jumped
            return nan
        padding_bytes = self._probes.pop(frame.echo, 0)
        self._probed_s[padding_bytes] = rtt_s
        if padding_bytes:  # the time to send it is included
            return nan
        self._note(rtt_s)
        return rtt_s

    def _note(self, rtt_s: float) -> None:
        """A sample, smoothed as TCP does it (RFC 6298, 2)."""
        self.rtt_s = rtt_s
        if isnan(self._smoothed_s):
            self._smoothed_s, self._deviation_s = rtt_s, rtt_s / 2
            return
        self._deviation_s += (abs(self._smoothed_s - rtt_s) - self._deviation_s) / 4
        self._smoothed_s += (rtt_s - self._smoothed_s) / 8

    def expect_probe(self, padding_bytes: int) -> None:
        """The last frame was a probe of that length."""
        self._probes[self._stamp] = padding_bytes

    def take_bytes_per_s(self) -> float:
        """Bandwidth towards the peer in bytes per second (B in DRAGON 5.2), once both probes are answered; else nan.

        inf: the longer probe took no longer.
        """
        if not {0, PROBE_BYTES} <= self._probed_s.keys():
            return nan
        longer_s = self._probed_s.pop(PROBE_BYTES) - self._probed_s[0]
        return PROBE_BYTES / longer_s if longer_s > 0 else inf


FIRST_FRAMES = 8
"""Before any frame was echoed; TCP has 10 packets (RFC 6928)."""
QUEUED_FRAMES = 4
"""Over a link with a queue. At 10 kbit/s they take as long as a round trip with the wait for a receipt, so that the
link is not idle; on a faster one that has a queue from other traffic, what waits goes out with the next one."""
QUEUE_S = 0.1
"""Beyond the quickest round trip: about a frame at 10 kbit/s, and more than a busy machine takes to answer."""
FORGET_SHARE = 1 / 64
"""By how much of its difference from each later sample the quickest round trip grows: routes change."""
MAX_WAITING_TOKENS = MAX_VERDICT_TOKENS - MAX_PROPOSAL - 1
"""Waiting verdicts have at most so many, so that one more fits into the same frame."""


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
    """The frames to one peer in one session that no echo has shown to have arrived, and what waits.

    Invariant: verdicts wait in the order of their steps, and together they fit one frame; proposals in that order, too.
    """

    def __init__(self) -> None:
        self.room = LinkRoom()  # a table gives all queries of a link the same
        self._num_sent = self._last_echoed = 0
        # by stamp: place among all frames, and frames on their way then
        self._sent: dict[int, tuple[int, int]] = {}
        self._waiting: list[Verdict] = []
        self._waiting_s = 0.0  # since when the first of them has waited
        self._proposals: list[Vote] = []

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

    # ---- verdicts that wait ------------------------------------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        """Whether a verdict waits."""
        return bool(self._waiting)

    def add_waiting(self, verdict: Verdict, now_s: float) -> None:
        """A verdict waits from now on."""
        if not self._waiting:
            self._waiting_s = now_s
        self._waiting.append(verdict)

    def is_release_due(self, now_s: float, timeout_s: float) -> bool:
        """Whether what waits may go: the link has room, or is silent for so long that frames may be lost."""
        num_tokens = sum(len(verdict.tokens) for verdict in self._waiting)
        has_waited = now_s - self._waiting_s >= timeout_s
        return self.has_waiting and (not self.is_full or num_tokens > MAX_WAITING_TOKENS or has_waited)

    def take_waiting(self) -> Verdict:
        """Take what waits, as one verdict. There must be some."""
        verdict = join_verdicts(self._waiting)
        self._waiting = []
        return verdict

    def clear_waiting(self) -> None:
        """Forget what waits, verdicts and proposals."""
        self._waiting = []
        self.clear_proposals()

    # ---- proposals that wait -----------------------------------------------------------------------------------

    def add_proposal(self, proposal: Vote) -> None:
        """A proposal waits from now on. Those that begin where it begins, or behind, are of another branch."""
        self._proposals = [*(kept for kept in self._proposals if kept.step < proposal.step), proposal]

    def take_proposal(self, prefix: Prefix) -> Vote | None:
        """The first that waits, if the link has room; those that no token behind `prefix` can accept are forgotten."""
        self._proposals = [kept for kept in self._proposals if is_open(kept, prefix, len(prefix))]
        return self._proposals.pop(0) if self._proposals and not self.is_full else None

    def clear_proposals(self) -> None:
        """Forget the proposals that wait: nobody will accept them."""
        self._proposals = []


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
