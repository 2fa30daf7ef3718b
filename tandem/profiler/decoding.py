"""How long one party takes per draft: predicted from its offline profile if there is one, corrected at runtime."""

from __future__ import annotations

from math import isfinite

from tandem.profiler.line import DecodeLine
from tandem.profiler.moving import MovingAverage

OUTLIER = 3.0
"""Decode times above this multiple of the average are clamped to it: a page fault is not a new decode time. If a party
really becomes slower, the average follows within a few drafts."""
MIN_VALUES = 3
"""Times after which the average is reliable enough to clamp others."""
SHARE = 0.2
"""Weight of a new decode time in the moving average."""


class DecodeTime:
    """Decode time of one party, in seconds per draft.

    The paper's line models how decode time grows with the context, but adapts slowly if the machine's speed has changed
    since it was profiled. NOT in the paper: we also keep a moving average and predict with whichever had the smaller
    recent error.
    """

    def __init__(self, line: DecodeLine | None = None) -> None:
        """line: of the offline stage, for this model, machine and number of rows; None: only measured times count."""
        self.line = line
        self._average = MovingAverage(SHARE)
        self._line_error = MovingAverage(SHARE)  # mean absolute error of each prediction, in seconds
        self._average_error = MovingAverage(SHARE)

    def predict(self, step: int) -> float:
        """Seconds that the draft of `step` will take; nan if nothing is known."""
        if self.line is None:
            return self._average.value
        is_average_better = self._average_error.value < self._line_error.value  # false if either is nan
        return self._average.value if is_average_better else self._on_line(step)

    def add(self, step: int, seconds: float) -> str | None:
        """Take in a measured time; one sentence if it was ignored or clamped. nan (not measured) is skipped."""
        if seconds != seconds:
            return None
        if not isfinite(seconds) or seconds <= 0:
            return (
                f"A decode time of {seconds:g} s at step {step} was ignored: it must be finite and above 0."
            )
        expected_s = self._average.value
        is_outlier = self._average.num_values >= MIN_VALUES and seconds > OUTLIER * expected_s
        clamped_s = OUTLIER * expected_s if is_outlier else seconds
        self._take(step, clamped_s)
        if not is_outlier:
            return None
        return (
            f"A decode time of {seconds:g} s at step {step} was clamped to {clamped_s:g} s: "
            f"{expected_s:g} s was expected."
        )

    def _take(self, step: int, seconds: float) -> None:
        self._average_error.add(abs(self._average.value - seconds))
        self._average.add(seconds)
        if self.line is not None:
            self._line_error.add(abs(self._on_line(step) - seconds))
            self.line = self.line.update(self.line.start + step, seconds)

    def _on_line(self, step: int) -> float:
        assert self.line is not None
        return self.line.predict(self.line.start + step)
