"""One session's profile: measured decode times, round trips and acceptance, and the draft window they call for.

Knows nothing of laws or placement; values come in as observations of committed steps.
"""

from __future__ import annotations

from math import ceil, isfinite

from tandem.messages import Observation, Profile, Window
from tandem.profiler.moving import MovingAverage
from tandem.protocol.sends import Send
from tandem.protocol.spec import SessionSpec
from tandem.side import Side


def draft_window(rtt_s: float, own_decode_s: float, peer_decode_s: float) -> int:
    """W = ceil((rtt + c_own) / max(c)) + 1: drafts that keep both sides busy for one round trip.

    Values in seconds. What is not yet measured counts as "no wait": window 2.
    """
    if not (isfinite(rtt_s) and isfinite(own_decode_s)) or own_decode_s <= 0:
        return 2
    slower_s = max(own_decode_s, peer_decode_s) if isfinite(peer_decode_s) else own_decode_s
    return ceil((rtt_s + own_decode_s) / slower_s) + 1


class ProfilerSession:
    """Estimates of one query on one side."""

    def __init__(self, spec: SessionSpec, side: Side) -> None:
        self.spec = spec
        self.side = side
        self.decode_s = {Side.DEVICE: MovingAverage(), Side.CLOUD: MovingAverage()}
        self.acceptance = {Side.DEVICE: MovingAverage(), Side.CLOUD: MovingAverage()}
        self.rtt_s = MovingAverage()
        self.window = 0

    def observe(self, *steps: Observation) -> list[Send]:
        """Take committed steps in; tells the scheduler, and the decoder where its window changes."""
        for seen in steps:
            self.decode_s[Side.DEVICE].add(seen.device_decode_s)
            self.decode_s[Side.CLOUD].add(seen.cloud_decode_s)
            self.acceptance[Side.DEVICE].add(seen.device_acceptance)
            self.acceptance[Side.CLOUD].add(seen.cloud_acceptance)
            self.rtt_s.add(seen.rtt_s)
        window = draft_window(
            self.rtt_s.value, self.decode_s[self.side].value, self.decode_s[self.side.other].value
        )
        sends = [Send("scheduler", self.profile())]
        if window != self.window:
            self.window = window
            sends.append(Send("decoder", Window(session=self.spec.session, size=window)))
        return sends

    def profile(self) -> Profile:
        """The present estimates; nan where nothing was seen."""
        return Profile(
            session=self.spec.session,
            device_decode_s=self.decode_s[Side.DEVICE].value,
            cloud_decode_s=self.decode_s[Side.CLOUD].value,
            device_acceptance=self.acceptance[Side.DEVICE].value,
            cloud_acceptance=self.acceptance[Side.CLOUD].value,
            rtt_s=self.rtt_s.value,
        )
