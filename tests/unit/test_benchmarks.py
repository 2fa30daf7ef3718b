"""The benchmarks that need no cluster run in their smoke size and end with one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="plots need the extra [plot]")

ROOT = Path(__file__).parent.parent.parent
NAMES = (
    "scheduling_delta_z",
    "scheduling_speedup",
    "scheduling_strategies",
    "scheduling_case_study",
    "stored_prefixes",
)


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name: str, tmp_path: Path) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("prediction"), "the prediction comes before the measurement"
    assert "environment" in json.loads(lines[-1])
    assert list(tmp_path.glob("*.png"))


def test_retrieval() -> None:
    command = [sys.executable, "benchmarks/retrieval.py", "--smoke", "--kinds", "flat", "ivf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("prediction"), "the prediction comes before the measurement"
    found = json.loads(lines[-1])["sizes"]["3000"]
    assert found["flat"]["tandem_recall"] == 1
    assert found["ivf"]["tandem_recall"] >= 0.95


def test_bytes_of_messages_are_without_rays_own() -> None:
    from benchmarks.link_stall import plane_bytes

    socket = {"device": {"data": 400, "ray": 70, "other": 9}, "cloud": {"data": 500, "ray": 30, "other": 9}}
    assert plane_bytes(socket, "socket", 0.0) == 900
    ray = {"device": {"data": 0, "ray": 2000, "other": 9}, "cloud": {"data": 0, "ray": 3000, "other": 9}}
    assert plane_bytes(ray, "ray", 100.0) == 4900
