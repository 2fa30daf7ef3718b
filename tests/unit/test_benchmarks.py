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
