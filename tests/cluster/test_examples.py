"""The examples that start all parties, as a reader would run them, with questions and notes that the toy can read."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import Tandem

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str, folder: Path | None = None) -> list[str]:
    """The lines that a Python command prints in a folder."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.nightly("loads models in a process of its own")
def test_quickstart() -> None:
    lines = run(
        str(EXAMPLES / "quickstart.py"), "Which game should Mira try?", "Which walk is right for Drezi?"
    )
    assert lines[0] == "Mira likes puzzle games, so try Pukan Vakun."
    assert "  device: note-01-mira-games.md" in lines
    assert lines[-1].strip().startswith("Drezi likes island walks")


@pytest.mark.nightly("loads models in a process of its own")
def test_your_documents(tmp_path: Path) -> None:
    (tmp_path / "nido.md").write_text("What Nido wants most is a good puzzle game.", "utf-8")
    (tmp_path / "mura.txt").write_text("Of all walks, Mura prefers island walks.", "utf-8")
    lines = run(str(EXAMPLES / "your_documents.py"), str(tmp_path), "Which game should Nido try?")
    assert lines[:2] == ["2 files, 2 chunks", "Nido likes puzzle games, so try Pukan Vakun."]


@pytest.mark.nightly("loads models in a process of its own")
def test_federated() -> None:
    """Of the toys nobody reads the notes well; the example says who read, and whose drafts were kept."""
    lines = run(str(EXAMPLES / "federated.py"))
    assert re.match(r"notes read: 1 of ada, 1 of ben, 1 of cleo; drafts kept: \d+ of \d+$", lines[1])
    begins = ("together: ", "notes read: ", "asked at ada: ", "ada alone: ", "ben alone: ", "cleo alone: ")
    assert [line.startswith(begin) for line, begin in zip(lines, begins, strict=True)] == [True] * 6


@pytest.mark.nightly("starts a cluster of its own")
def test_code_beside_the_user_reaches_every_actor(tmp_path: Path) -> None:
    """A codec and a placement policy of one's own, found in the folder in which the cluster was started."""
    settings = [
        "codec.name=custom_codec:TopK8",
        "codec.parameters={k = 8}",
        "decoding.placement=custom_policy:Alternate",
        "scheduler.parameters={period = 4}",
        "cluster.runtime=ray",
        "cluster.start_timeout_s=240",
    ]
    for name in ("custom_codec.py", "custom_policy.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    command = ["-m", "tandem", "ask", "Which game should Mira try?", "--seed", "7", "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    answer = json.loads("\n".join(run(*command, folder=tmp_path)))
    assert answer["answer"]
    handovers = [(event["step"], event["aggregator"]) for event in answer["placements"]]
    assert handovers[:2] == [(4, "cloud"), (8, "device")]


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
