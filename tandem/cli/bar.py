"""A progress bar on stderr; where stderr is no terminal, a plain line for every tenth of the way."""

from __future__ import annotations

import sys
from typing import TextIO

WIDTH = 30
NUM_LINES = 10


class Bar:
    """Call it with (done, total). Knows nothing of time: it draws when there is something new to see."""

    def __init__(self, label: str, *, is_quiet: bool = False, stream: TextIO | None = None) -> None:
        """stream: default stderr as it is at that moment."""
        self._label = label
        self._is_quiet = is_quiet
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        """Draws how far it is."""
        stage = done * (WIDTH if self._is_terminal else NUM_LINES) // max(1, total)
        if self._is_quiet or (stage == self._shown and done < total):
            return
        self._shown = stage
        percent = f"{100 * done // max(1, total):3d} %"
        if not self._is_terminal:
            print(f"{self._label}: {percent.strip()}", file=self._stream, flush=True)
            return
        bar = "#" * stage + "." * (WIDTH - stage)
        # The carriage return draws the next state over this one.
        end = "\n" if done >= total else "\r"
        print(f"{self._label:<6} [{bar}] {percent}", end=end, file=self._stream, flush=True)
