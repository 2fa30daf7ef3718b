"""The page "Your documents, your model, ten minutes" works line by line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import ten_minutes

pytestmark = [
    pytest.mark.nightly("follows the page for minutes, and starts clusters by its commands"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(not (ten_minutes.ROOT / ".git").exists(), reason="this is no clone of the repository"),
]


def test_the_page_works_line_by_line(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    home = tmp_path / "home"
    home.mkdir()
    ten_minutes.prepare_home(home)
    steps = ten_minutes.follow(home)
    total_s = sum(step.seconds for step in steps)
    record_property("wall_s", total_s)
    print(f"\nThe page took {total_s:.1f} s:", *ten_minutes.lines(steps), sep="\n")
    shown = {step.commands: step.output for step in steps}
    assert len(shown) == len(steps) >= 8

    def output(command: str) -> str:
        (found,) = [text for commands, text in shown.items() if command in commands]
        return found

    assert "30 files" in output("tandem index device")
    assert "100 files" in output("tandem index device")
    assert "note-07.md" in output("tandem search")
    assert "wants the budget raised" in output("tandem ask --show-sources")
    status = output("tandem status")
    assert [status.count(f"{kind} ") for kind in ("retriever", "decoder", "draft_queue", "aggregator")] == [
        2
    ] * 4
    assert "DEAD" not in status
    answers = [json.loads(line) for line in output("tandem chat").splitlines() if line.startswith("{")]
    assert [answer["question"] for answer in answers] == [
        "Who decides about travel?",
        "What is the form for visitors?",
    ]
    assert "-- note-" in output("Tandem.connect()")
    assert "Traceback" not in "".join(shown.values())
