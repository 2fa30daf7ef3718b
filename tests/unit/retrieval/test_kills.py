"""Killed builds and updates, in a process of their own; `kill_trials.py` says what is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TRIALS = Path(__file__).with_name("kill_trials.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRIALS), *arguments]
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )


def test_killed_builds_and_updates_lose_nothing() -> None:
    ended = run("--trials", "8")
    assert ended.returncode == 0, ended.stderr
    assert "'embedding'" in ended.stdout


def test_a_build_that_commits_in_two_steps_is_found() -> None:
    """The chance that none of 40 kills strikes the gap, more than a quarter of the choices, is below 1e-5."""
    ended = run("--trials", "40", "--what", "update", "--mutant")
    assert ended.returncode == 1
    assert "is damaged" in ended.stderr
