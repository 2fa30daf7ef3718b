"""The picture of a replay: what is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem_lab.netlab.schedule import LinkSchedule
from tandem_lab.replay.plot import plot_replay, running_quartiles
from tandem_lab.replay.records import Replay
from tests.unit.lab.replay.many import many_questions
from tests.unit.lab.replay.recorded import ROWS, replay, replay_of_proposals
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


def test_lengths_of_proposals_stand_between(tmp_path: Path) -> None:
    plot_replay(replay_of_proposals(), tmp_path / "out.svg", title="Lengths", mode="speculative")
    shown = words(tmp_path / "out.svg")
    for word in (
        "K, tokens of a proposal",
        "accepted of them",
        "the cloud's own (1)",
        "the device's drafts (1)",
        "rate (Mbit/s)",
        "RTT (ms)",
    ):
        assert word in shown
    assert "neither" not in shown
    plot_replay(replay(), tmp_path / "without.svg", title="x")
    for word in ("tokens of a proposal", "rate"):
        assert word not in words(tmp_path / "without.svg")


def test_of_nothing(tmp_path: Path) -> None:
    plot_replay(Replay(trace=LinkSchedule("x", ROWS), took_s=0.0), tmp_path / "out.png", title="x")
    assert (tmp_path / "out.png").exists()


def test_many_questions_are_a_density_with_running_quartiles(tmp_path: Path) -> None:
    plot_replay(many_questions(300), tmp_path / "many.svg", title="Many", setup="300 questions")
    shown = words(tmp_path / "many.svg")
    for word in ("Many", "300 questions", "median", "quartiles", "tokens", "seen by ping"):
        assert word in shown
    assert "a question is asked" not in shown
    assert "both drafts accepted" not in shown


def test_running_quartiles_are_those_of_each_stretch() -> None:
    """Values 0 to 99 in the first of fifty stretches of a second, 7 in the last, none between."""
    at_s = np.array([*np.linspace(0, 0.99, 100), 50.0])
    middles_s, quartiles = running_quartiles(at_s, np.array([*range(100), 7]), 50.0)
    assert middles_s.tolist() == [0.5, 49.5]
    assert quartiles.tolist() == [[24.75, 7], [49.5, 7], [74.25, 7]]
