"""The send window, the frames that may be on their way to a peer: a link that is full makes verdicts and proposals wait
here.

A frame that waits here can still grow; in the socket, or in the link's own queue, it cannot. As in TCP Vegas (Brakmo
and Peterson 1995) a queue shows in round trips that take longer than the quickest one.
"""

from __future__ import annotations

from math import inf, isnan

from tandem.messages import Verdict, Vote
from tandem.modes.proposing import MAX_PROPOSAL
from tandem.protocol.log import MAX_VERDICT_TOKENS, join_verdicts
from tandem.protocol.prefix import Prefix
from tandem.protocol.proposals import is_open

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
