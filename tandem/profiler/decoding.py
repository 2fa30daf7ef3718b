"""How long one side takes for a draft: predicted from its offline line where there is one, corrected at runtime.

Knows steps and seconds; nothing of models, or of where an offline line came from.
"""

from __future__ import annotations

from math import isfinite

from tandem.profiler.line import DecodeLine
from tandem.profiler.moving import MovingAverage

OUTLIER = 3.0
"""A time this many times longer than the average is taken as so much: one page fault is no new decode time, and a side
that really became slower is believed after a few drafts more."""
MIN_SEEN = 3
"""Times after which the average is good enough to doubt another."""
SHARE = 0.2
"""Weight of a new decode time in the moving average."""


class DecodeTime:
    """Decode time of one side, in seconds per draft.

    The paper's line knows how decode time grows with the context, but bends slowly where the machine now has another
    speed than when it was profiled. NOT in the paper: a moving average stands beside it, and whichever has been nearer
    of late predicts.
    """

    def __init__(self, line: DecodeLine | None = None) -> None:
        """line: of the offline stage, for this model, machine and number of rows; None: only what is seen counts."""
        self.line = line
        self._average = MovingAverage(SHARE)
        self._line_error = MovingAverage(SHARE)  # mean distance of each from what was then seen, in seconds
        self._average_error = MovingAverage(SHARE)

    def predict(self, step: int) -> float:
        """Seconds that the draft of `step` will take; nan where nothing is known."""
        if self.line is None:
            return self._average.value
        is_average_nearer = self._average_error.value < self._line_error.value  # no when either is nan
        return self._average.value if is_average_nearer else self._on_line(step)

    def add(self, step: int, seconds: float) -> str | None:
        """Take a measured time in; one sentence where it was not believed. What was not measured (nan) is ignored."""
        if seconds != seconds:
            return None
        if not isfinite(seconds) or seconds <= 0:
            return (
                f"A decode time of {seconds:g} s at step {step} was ignored: it must be finite and above 0."
            )
        expected_s = self._average.value
        is_doubted = self._average.num_values >= MIN_SEEN and seconds > OUTLIER * expected_s
        believed_s = OUTLIER * expected_s if is_doubted else seconds
        self._take(step, believed_s)
        if not is_doubted:
            return None
        return (
            f"A decode time of {seconds:g} s at step {step} was taken as {believed_s:g} s: "
            f"{expected_s:g} s were expected."
        )

    def _take(self, step: int, seconds: float) -> None:
        self._average_error.add(abs(self._average.value - seconds))
        self._average.add(seconds)
        if self.line is not None:
            self._line_error.add(abs(self._on_line(step) - seconds))
            self.line = self.line.updated(self.line.start + step, seconds)

    def _on_line(self, step: int) -> float:
        assert self.line is not None
        return self.line.predict(self.line.start + step)
