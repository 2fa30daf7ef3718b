"""The picture of a replay: what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.lab.latency.replay_plot import plot_replay
from tandem.lab.latency.replay_records import Replay
from tandem.lab.netlab.schedule import LinkSchedule
from tests.unit.lab.latency.recorded import ROWS, replay
from tests.unit.lab.timeline.test_pipeline import words

pytest.importorskip("matplotlib")


def test_by_hand(tmp_path: Path) -> None:
    plot_replay(replay(), tmp_path / "out.svg", title="LinkSchedule by_hand")
    shown = words(tmp_path / "out.svg")
    for word in (
        "LinkSchedule by_hand",
        "RTT (ms)",
        "since the token before (ms)",
        "only the device's (1)",
        "by the device alone (1)",
        "neither (1)",
        "first token of an answer (2)",
        "100 % lost",
        "seen by ping",
        "the trace ends",
    ):
        assert word in shown
    assert "both drafts accepted" not in shown, "that one was a first token"


def test_of_nothing(tmp_path: Path) -> None:
    plot_replay(Replay(trace=LinkSchedule("x", ROWS), took_s=0.0), tmp_path / "out.png", title="x")
    assert (tmp_path / "out.png").exists()
