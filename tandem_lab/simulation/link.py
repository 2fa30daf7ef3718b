"""A link between two hosts under a virtual clock: when does what is sent arrive, and how often.

Knows times, bytes and probabilities; nothing of frames.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

WAVE_PERIOD_S = 20 * math.pi
"""Of the sinusoidal jitter of DRAGON 7.3 and 7.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How frames fare between the sides. One way, in seconds, bytes and probabilities."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # uniform on top; makes frames overtake each other
    wave: float = 0.0  # amplitude of a sinusoid on top, as a share of `delay_s`
    wave_phase: float = 0.0  # radians, at time 0
    bytes_per_s: float = math.inf
    header_bytes: int = 0  # of every frame, besides its own: TCP, IP and Ethernet
    drop: float = 0.0
    duplicate: float = 0.0
    cut_s: tuple[float, float] | None = None  # nothing passes in this span of the clock
    is_in_order: bool = False  # as one TCP connection: nothing overtakes

    def delay_at(self, now_s: float) -> float:
        """Delay of a frame sent now, without the random part, in seconds."""
        return self.delay_s * (
            1.0 + self.wave * math.sin(2 * math.pi * now_s / WAVE_PERIOD_S + self.wave_phase)
        )


class Wire:
    """One direction of a link, with the frames that are under way."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free_s = 0.0  # when the last frame is out
        self._last_s = 0.0  # when the last one arrives

    def arrivals(self, now_s: float, num_bytes: int, rng: random.Random) -> list[float]:
        """When copies of a frame sent now arrive; none if it is lost."""
        link = self.link
        if link.cut_s is not None and link.cut_s[0] <= now_s < link.cut_s[1]:
            return []
        self._free_s = max(now_s, self._free_s) + (num_bytes + link.header_bytes) / link.bytes_per_s
        copies = (rng.random() >= link.drop) + (rng.random() < link.duplicate)
        return [self._arrival(rng) for _ in range(copies)]

    def _arrival(self, rng: random.Random) -> float:
        arrival_s = self._free_s + self.link.delay_at(self._free_s) + rng.random() * self.link.jitter_s
        if self.link.is_in_order:
            arrival_s = self._last_s = max(arrival_s, self._last_s)
        return arrival_s
