"""When bodies without a number, such as an opening or a Resync, are sent once more. Time comes in as an argument."""

from __future__ import annotations

from tandem.protocol.round_trips import MAX_TIMEOUT_S, MIN_TIMEOUT_S

SLOWEST_BYTES_PER_S = 1250.0
"""Before anything is known of the link an opening has as long as it takes at 10 kbit/s; history makes it long."""


class Repeats:
    """The wait of the bodies that one peer has not shown to have.

    Invariant: from one repetition to the next the wait doubles, up to MAX_TIMEOUT_S, until it starts again.
    """

    def __init__(self, now_s: float) -> None:
        self.opening_s = 0.0  # that the opening may take, besides the first timeout
        self._since_s = now_s
        self._wait_s = MIN_TIMEOUT_S

    def note_opening(self, num_bytes: int) -> None:
        """An opening of this length is on its way."""
        self.opening_s = num_bytes / SLOWEST_BYTES_PER_S

    def restart(self, now_s: float) -> None:
        """The wait starts again."""
        self._since_s, self._wait_s = now_s, MIN_TIMEOUT_S

    def take_due(self, now_s: float, timeout_s: float, *, is_opening: bool) -> bool:
        """Whether to repeat now, after the wait or `timeout_s`, whichever is longer; then the next wait begins.

        is_opening: the peer was never heard, so an opening has the time that it may take besides.
        """
        if now_s - self._since_s < max(self._wait_s, timeout_s) + is_opening * self.opening_s:
            return False
        self._since_s, self._wait_s = now_s, min(2 * self._wait_s, MAX_TIMEOUT_S)
        return True
