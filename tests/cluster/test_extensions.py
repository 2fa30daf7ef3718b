"""A codec and a placement policy of one's own on a real cluster, found in the folder in which it was started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tandem

ROOT = Path(tandem.__file__).parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = [
    pytest.mark.nightly("each test starts a cluster by a command"),
    pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not part of this installation"),
]


def ask(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", "ask", "Which game should Mira try?", "--seed", "7", "--json"]
    command += [part for setting in (*settings, "cluster.start_timeout_s=240") for part in ("--set", setting)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_code_beside_the_user_reaches_every_actor(tmp_path: Path) -> None:
    for name in ("custom_codec.py", "custom_policy.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    done = ask(
        tmp_path,
        "codec.name=custom_codec:TopK8",
        "codec.parameters={k = 8}",
        "decoding.placement=custom_policy:Alternate",
        "scheduler.parameters={period = 4}",
        "cluster.runtime=ray",
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["answer"]
    handovers = [(event["step"], event["aggregator"]) for event in answer["placements"]]
    assert handovers[:2] == [(4, "cloud"), (8, "device")]
