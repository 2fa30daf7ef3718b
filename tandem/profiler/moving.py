"""Moving averages that start with the first value and ignore missing ones."""

from __future__ import annotations

from math import isfinite, nan


class MovingAverage:
    """Exponential moving average; nan until the first finite value."""

    __slots__ = ("num_values", "share", "value")

    def __init__(self, share: float = 0.2) -> None:
        """share: weight of a new value, in (0, 1]."""
        self.share = share
        self.value = nan
        self.num_values = 0

    def add(self, value: float) -> None:
        """Take in `value`; nan and infinities are ignored."""
        if not isfinite(value):
            return
        self.value = value if self.num_values == 0 else self.value + self.share * (value - self.value)
        self.num_values += 1
