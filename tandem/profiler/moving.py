"""Moving averages, and lines, that start with the first value and ignore missing ones."""

from __future__ import annotations

from math import isfinite, isnan, nan


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


class MovingLine:
    """A line through points, fitted by least squares with exponentially decreasing weights; it never falls.

    Where the points hardly differ in x the slope is near 0: `ridge` is added to their variance. What is known of the
    slope is not forgotten while new points hardly differ, or a length that is kept would seem to cost nothing.
    """

    __slots__ = ("_covariance", "_variance", "mean_x", "mean_y", "ridge", "share")

    def __init__(self, share: float = 0.1, ridge: float = 0.25) -> None:
        """share: weight of a new point, in (0, 1]; ridge: in units of x squared, above 0."""
        self.share, self.ridge = share, ridge
        self.mean_x = self.mean_y = nan
        self._variance = self._covariance = 0.0

    def add(self, x: float, y: float) -> None:
        """Take in a point; one that is not finite is ignored."""
        if not (isfinite(x) and isfinite(y)):
            return
        if isnan(self.mean_x):
            self.mean_x, self.mean_y = x, y
            return
        far_x, far_y = x - self.mean_x, y - self.mean_y
        kept = 1.0 - self.share if self._variance > self.ridge else 1.0
        self.mean_x += self.share * far_x
        self.mean_y += self.share * far_y
        self._variance = kept * (self._variance + self.share * far_x * far_x)
        self._covariance = kept * (self._covariance + self.share * far_x * far_y)

    @property
    def slope(self) -> float:
        """At least 0; 0 before there are two points."""
        return max(0.0, self._covariance / (self._variance + self.ridge))

    @property
    def intercept(self) -> float:
        """The value at x = 0, at least 0; nan before the first point."""
        return nan if isnan(self.mean_x) else max(0.0, self.mean_y - self.slope * self.mean_x)
