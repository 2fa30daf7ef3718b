"""`tandem model profile` on the bundled model, a few tokens long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.engine.engine import Engine
from tandem.plugins.papers.flexspec import build

from .conftest import Run

SHORT = ["--limit", "48", "--runs", "1", "--set", "device.num_documents=2"]


@pytest.fixture
def cache(folders: Path) -> Path:
    return folders / "cache"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were loaded."""
    loaded: list[str] = []
    load = Engine.load

    def recorded(model: str, **options: Any) -> Engine:
        loaded.append(model)
        return load(model, **options)

    monkeypatch.setattr(Engine, "load", recorded)
    return loaded


def test_a_line_and_where_it_is_kept(cache: Path, loads: list[str], run: Run) -> None:
    shown = run("model", "profile", "device", *SHORT, code=0)
    first, fit, what, *_, where = shown.out.splitlines()
    assert first.startswith("device   ")
    assert "ms per token after a prompt of" in first
    assert first.endswith("ms per 1000 more")
    assert fit.endswith("tokens x 1 run")
    assert "bundled, 2 rows, cpu, float32, 1 thread, " in what
    (file,) = (cache / "tandem" / "profiles").iterdir()
    assert where.strip() == f"kept in {file}"
    shown = run("model", "profile", "device", *SHORT, code=0)
    assert shown.out.splitlines()[:3] == [first, fit, what]
    assert f"cached in {file}; measure again with --force" in shown.out
    assert len(loads) == 1


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--set", "device.model=/no/such/model"], 1, "'/no/such/model' is neither"),
        ([*SHORT, "--limit", "3"], 1, "raise the limit"),
        (["--runs", "0"], 2, "--runs must be greater than or equal to 1; see "),
    ],
)
def test_wrong_models_and_limits_are_one_sentence(
    options: list[str], code: int, sentence: str, run: Run
) -> None:
    assert sentence in run("model", "profile", "device", *options, code=code).err


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
