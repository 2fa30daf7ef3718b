"""How long tests take: what begins first, and which tests are long without a reason.

`make test-durations` records into `durations.json` what each share of a run took. Tests of more than 20 s say why by a
marker (`slow`, `nightly` or `weekly`, each with a reason); the end of every run lists those that do not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
LONG_S = 20.0
SHORT_S = 1.0
"""Below it the order does not matter, and nothing is recorded."""
REASONS = {"slow", "nightly", "weekly"}
"""Markers that say why a test is long or not played at every push."""


def read() -> dict[str, float]:
    """Seconds of each share, as recorded; empty if nothing was."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


class Durations:
    """A plugin that adds up what tests take, in the process that reports.

    share_of: what goes to one process with a test, by the test's name. is_recording: whether to write FILE; shares that
    did not run keep their seconds.
    """

    def __init__(self, share_of: Callable[[str], str], is_recording: bool) -> None:
        self.share_of = share_of
        self.is_recording = is_recording
        self.seconds: Counter[str] = Counter()
        self.unexplained: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[self.share_of(report.nodeid)] += report.duration  # type: ignore[assignment]
        if report.when == "call" and report.duration > LONG_S and not REASONS & set(report.keywords):
            self.unexplained[report.nodeid] = report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, seconds in sorted(self.unexplained.items()):
            terminalreporter.write_line(f"long without a reason (marker slow): {seconds:.0f} s, {name}")

    def pytest_sessionfinish(self) -> None:
        if self.is_recording:
            taken = {share: round(seconds, 1) for share, seconds in self.seconds.items()}
            seconds = {share: each for share, each in (read() | taken).items() if each >= SHORT_S}
            FILE.write_text(json.dumps(seconds, indent=0, sort_keys=True) + "\n", "utf-8")
