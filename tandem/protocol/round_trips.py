"""Round trips and bandwidth from the stamps that frames carry and echo. Time comes in as an argument."""

from __future__ import annotations

from math import inf, isnan, nan

from tandem.messages import LinkFrame

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
