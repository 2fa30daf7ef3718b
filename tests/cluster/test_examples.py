"""The examples that start both parties, as a reader would run them, with questions and notes that the toy can read."""

from __future__ import annotations

import contextlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import Tandem

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> list[str]:
    """The lines that an example prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.nightly("loads models in a process of its own")
def test_quickstart() -> None:
    lines = run("quickstart.py", "Which game should Mira try?", "Which walk is right for Drezi?")
    assert lines[0] == "Mira likes puzzle games, so try Pukan Vakun."
    assert "  device: note-01-mira-games.md" in lines
    assert lines[-1].strip().startswith("Drezi likes island walks")


@pytest.mark.nightly("loads models in a process of its own")
def test_your_documents(tmp_path: Path) -> None:
    (tmp_path / "nido.md").write_text("What Nido wants most is a good puzzle game.", "utf-8")
    (tmp_path / "mura.txt").write_text("Of all walks, Mura prefers island walks.", "utf-8")
    lines = run("your_documents.py", str(tmp_path), "Which game should Nido try?")
    assert lines[:2] == ["2 files, 2 chunks", "Nido likes puzzle games, so try Pukan Vakun."]


def test_many_questions(
    rag: Tandem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It launches as the quickstart does; here it gets a cluster that runs, and questions for the toy."""
    path = str(EXAMPLES / "many_questions.py")
    asked = ["Which game should Mira try?", "Which walk is right for Drezi?", "Which soup should Drezi cook?"]
    (tmp_path / "questions.txt").write_text("\n".join(asked))
    monkeypatch.setattr(Tandem, "launch", lambda: contextlib.nullcontext(rag))
    monkeypatch.setattr(sys, "argv", [path, str(tmp_path / "questions.txt")])
    runpy.run_path(path, run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert "1. Which game should Mira try? Mira likes puzzle games, so try Pukan Vakun." in lines
    assert sorted(line[:2] for line in lines) == ["1.", "2.", "3."]
