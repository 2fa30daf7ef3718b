"""Round trips and bandwidth from the timestamps that every frame carries. Time comes in as an argument."""

from __future__ import annotations

from math import inf, isnan, nan

from tandem.protocol.messages import LinkFrame

MIN_TIMEOUT_S = 0.5
FIRST_TIMEOUT_S = 1.0
"""Before anything is known of the link (RFC 6298, 2.1)."""
MAX_TIMEOUT_S = 4.0
PROBE_BYTES = 1200
"""Padding of the longer of two probes: one packet, since bandwidth matters only where a packet's time can be seen."""
_CLOCK_MASK = 0xFFFFFFFF  # timestamps are microseconds modulo 2^32
_NEVER = _CLOCK_MASK  # `held_us` before anything was received


def _clock_us(now_s: float) -> int:
    return int(now_s * 1e6) & _CLOCK_MASK


class RoundTrips:
    """What the echoes of one peer show.

    Invariant: only this party's own clock is read, so a difference between the two clocks changes nothing.
    """

    def __init__(self, now_s: float, *, measures: bool = False) -> None:
        """measures: probes are still to be sent."""
        self.rtt_s = nan  # last sample
        self._smoothed_s, self._deviation_s = nan, 0.0
        self.measures = measures
        self._peer_sent_us: int | None = None
        self._arrived_s = now_s  # of the frame that is echoed
        self._probes: dict[int, int] = {}  # by `sent_us`: bytes of padding
        self._probed_s: dict[int, float] = {}  # by bytes of padding: the round trip

    @property
    def timeout_s(self) -> float:
        """How long to wait for a receipt, within limits: two round trips, or more where they vary (RFC 6298)."""
        usual_s = FIRST_TIMEOUT_S if isnan(self._smoothed_s) else self._smoothed_s + 4 * self._deviation_s
        return min(max(MIN_TIMEOUT_S, 2 * self.known_s, usual_s), MAX_TIMEOUT_S)

    @property
    def known_s(self) -> float:
        """The last sample; 0 before there is one."""
        return 0.0 if isnan(self.rtt_s) else self.rtt_s

    def header(self, now_s: float) -> tuple[int, int, int]:
        """`sent_us`, `echo_us` and `held_us` of a frame that is sent now."""
        if self._peer_sent_us is None:
            return _clock_us(now_s), 0, _NEVER
        held_us = min(int((now_s - self._arrived_s) * 1e6), _NEVER - 1)
        return _clock_us(now_s), self._peer_sent_us, held_us

    def receive(self, frame: LinkFrame, now_s: float, waited_s: float = 0.0) -> float:
        """Take in a frame's timestamps; returns a round-trip time in seconds, or nan.

        waited_s: how long ago the frame arrived. The echo says so, or the peer would take the wait for a part of the
        round trip.
        """
        self._peer_sent_us, self._arrived_s = frame.sent_us, now_s - waited_s
        if frame.held_us == _NEVER:
            return nan
        elapsed_us = (_clock_us(now_s) - frame.echo_us) & _CLOCK_MASK
        rtt_us = elapsed_us - frame.held_us
        if not 0 <= rtt_us < 1 << 31:  # a frame that was overtaken, or a peer whose clock jumped
            return nan
        rtt_s = rtt_us / 1e6
        padding_bytes = self._probes.pop(frame.echo_us, 0)
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

    def expect_probe(self, sent_s: float, padding_bytes: int) -> None:
        """A probe of that length was sent."""
        self._probes[_clock_us(sent_s)] = padding_bytes

    def take_bytes_per_s(self) -> float:
        """Bandwidth towards the peer in bytes per second (B in DRAGON 5.2), once both probes are answered; else nan.

        inf: the longer probe took no longer.
        """
        if not {0, PROBE_BYTES} <= self._probed_s.keys():
            return nan
        longer_s = self._probed_s.pop(PROBE_BYTES) - self._probed_s[0]
        return PROBE_BYTES / longer_s if longer_s > 0 else inf
