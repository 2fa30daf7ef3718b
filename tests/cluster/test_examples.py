"""The examples that start a cluster, as a reader would run them; each stops what it started."""

from __future__ import annotations

import contextlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import Tandem

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.nightly("each starts a cluster of its own")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "quickstart.py",
            ["Mira likes puzzle games, so try Pukan Vakun.", "  device: note-01-mira-games.md"],
        ),
        ("your_documents.py", ["2 files, 2 chunks", "Nido likes puzzle games, so try Pukan Vakun."]),
    ],
)
def test_an_example_runs(name: str, expected: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert not [line for line in expected if line not in lines], done.stdout


def test_many_questions(
    rag: Tandem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts its cluster as the quickstart does; here it gets one that runs."""
    path = str(EXAMPLES / "many_questions.py")
    monkeypatch.setattr(Tandem, "launch", lambda: contextlib.nullcontext(rag))
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert "1. Which game should Mira try? Mira likes puzzle games, so try Pukan Vakun." in lines
    assert sorted(line[:2] for line in lines) == ["1.", "2.", "3."]
