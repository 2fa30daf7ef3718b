"""What is known of both parties and of the link: measurements of committed steps in, estimates out.

Only round trips are used, never one-way times, so the clocks of the two hosts need not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import ceil, isfinite, isnan, nan

from tandem.profiler.decoding import DecodeTime
from tandem.profiler.line import DecodeLine
from tandem.profiler.moving import MovingAverage
from tandem.topology import PARTIES, Party

ACCEPTANCE_SHARE = 0.1
"""Weight of a new step in the moving average of acceptance: about 20 steps count."""
RTT_SHARE = 0.5
"""Weight of a new round trip in the real-time estimate."""
RTT_AVERAGE_SHARE = 0.1
"""Weight of a new round trip in the historical average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one committed step showed; nan where nothing was measured."""

    step: int
    decode_s: Mapping[Party, float]  # seconds per draft
    acceptance: Mapping[Party, float]  # expected, by the formula of the draft rule, in [0, 1]
    rtt_s: float
    bytes_per_s: float  # towards the peer; inf: too fast to measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Estimates for one step, units as in `Measurement`; nan where nothing is known."""

    decode_s: Mapping[Party, float]
    acceptance: Mapping[Party, float]
    rtt_s: float  # the real-time estimate
    rtt_average_s: float  # the historical average
    bytes_per_s: float  # the last measured

    def window(self, own: Party) -> int:
        """The draft window of `own`."""
        return draft_window(self.rtt_s, self.decode_s[own], self.decode_s[own.other])


def draft_window(rtt_s: float, own_decode_s: float, peer_decode_s: float) -> int:
    """W = ceil((rtt + c_own) / max(c)) + 2: drafts that keep both parties busy for one round trip.

    One more than needed at an even pace: after a rejection the faster party has to catch up with the slower one.
    Values in seconds. Without a measured round trip or own decode time the window is 2.
    """
    if not (isfinite(rtt_s) and isfinite(own_decode_s)) or own_decode_s <= 0:
        return 2
    slower_s = max(own_decode_s, peer_decode_s) if isfinite(peer_decode_s) else own_decode_s
    return ceil((rtt_s + own_decode_s) / slower_s) + 2


class Estimator:
    """Averages what the steps of a session show."""

    def __init__(self, lines: Mapping[Party, DecodeLine]) -> None:
        """lines: the offline profiles, of the parties that have one."""
        self._decode = {party: DecodeTime(lines.get(party)) for party in PARTIES}
        self._acceptance = {party: MovingAverage(ACCEPTANCE_SHARE) for party in PARTIES}
        self._rtt_s = MovingAverage(RTT_SHARE)
        self._rtt_average_s = MovingAverage(RTT_AVERAGE_SHARE)
        self._bytes_per_s = nan

    def add(self, measurement: Measurement) -> tuple[str, ...]:
        """Take in one step; a sentence for each decode time that was ignored or clamped."""
        notes = []
        for party in PARTIES:
            note = self._decode[party].add(measurement.step, measurement.decode_s[party])
            notes += [] if note is None else [f"{party}: {note}"]
            self._acceptance[party].add(measurement.acceptance[party])
        self._rtt_s.add(measurement.rtt_s)
        self._rtt_average_s.add(measurement.rtt_s)
        if not isnan(measurement.bytes_per_s):
            self._bytes_per_s = measurement.bytes_per_s
        return tuple(notes)

    def estimate(self, step: int) -> Estimates:
        """What to expect of `step`."""
        return Estimates(
            decode_s={party: self._decode[party].predict(step) for party in PARTIES},
            acceptance={party: self._acceptance[party].value for party in PARTIES},
            rtt_s=self._rtt_s.value,
            rtt_average_s=self._rtt_average_s.value,
            bytes_per_s=self._bytes_per_s,
        )

    def carry_over(
        self, lines: Mapping[Party, DecodeLine], *, decode_of: Collection[Party], acceptance: bool
    ) -> Estimator:
        """An independent estimator for the next session: the link's estimates, and those that still apply.

        decode_of: parties whose decode times still apply; the others start from `lines`. acceptance: whether the
        acceptance rates still apply.
        """
        estimator, fresh = deepcopy(self), Estimator(lines)
        for party in PARTIES:
            if party not in decode_of:
                estimator._decode[party] = fresh._decode[party]
        if not acceptance:
            estimator._acceptance = fresh._acceptance
        return estimator
