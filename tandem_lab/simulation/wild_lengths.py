"""A policy of proposal lengths that may choose any length at any time, to show that no choice changes an answer."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tandem.scheduler.lengths import RoundCosts


class WildLengths:
    """Lengths from 0 to beyond the limit, in no order. Implements `LengthPolicy`."""

    def __init__(self, max_length: int, seed: int | None = None) -> None:
        self._rng, self._max_length = random.Random(max_length if seed is None else seed), max_length

    def choose(self, rates: Sequence[float], costs: RoundCosts, error: float = 0.0) -> int:
        """Each as often as the others."""
        return self._rng.randint(-1, self._max_length + 3)

    def observe(self, length: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """Nothing to learn."""
