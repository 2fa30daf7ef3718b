"""`tandem model draft`: what it hands to the trainer, what it prints, and wrong command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.plugins.papers.flexspec import build

from .conftest import Run

Calls = list[tuple[str, Path, dict[str, Any]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the trainer was asked for."""
    made: Calls = []

    def train(model: str, out: Path, **options: Any) -> build.DrafterCard:
        made.append((model, out, options))
        shares = {"coupled": 0.81, "rejection": 0.83, "greedy": 0.7, "num_tokens": 560}
        return build.DrafterCard(
            target=model, fingerprints={}, trunk="first", blocks=(0,), loss="kl", acceptance=shares
        )

    monkeypatch.setattr(build, "train_drafter", train)
    return made


def test_texts_and_questions_go_to_the_trainer(calls: Calls, folders: Path, run: Run) -> None:
    notes = folders / "notes"
    notes.mkdir()
    (notes / "one.txt").write_text("Mira likes puzzle games.")
    (folders / "questions.txt").write_text("Why?\n\nWhich game?\n")
    line = f"model draft --from bundled --out d --text {notes} --questions {folders / 'questions.txt'}"
    options = ("--trunk", "2", "--loss", "tv", "--steps", "7", "--seed", "3")
    shown = run(*line.split(), *options, code=0).out
    ((model, out, options),) = calls
    assert (model, out) == ("bundled", Path("d"))
    assert options["texts"] == ["Mira likes puzzle games."]
    assert options["questions"] == ["Why?", "Which game?"]
    assert options["recipe"] == build.Recipe(trunk="2", loss="tv", num_steps=7, seed=3)
    assert "on 560 tokens held out 0.81 of its coupled drafts stand at temperature 1" in shown
    assert "--set device.model=d --set cloud.model=bundled" in shown


def test_wrong_command_lines(calls: Calls, run: Run) -> None:
    line = ("model", "draft", "--from", "bundled", "--out", "d")
    assert run(*line, code=1).err == (
        "tandem: A drafter learns from text or questions, but neither is named; add --text or --questions.\n"
    )
    assert "'l2' is not one of 'kl', 'tv'" in run(*line, "--text", ".", "--loss", "l2", code=2).err
    assert calls == []
