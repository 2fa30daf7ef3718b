"""What a user can get wrong at start: one sentence with the value and the remedy, and nothing is left running."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tandem import Config, Tandem
from tandem.errors import TandemError

from .conftest import alive, descendants


def own_children() -> set[int]:
    """Processes that this one has started: `ray start`."""
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.nightly("starts a cluster of its own")
def test_a_model_that_its_decoder_cannot_load(tmp_path: Path) -> None:
    """One sentence, and no node is left running."""
    (tmp_path / "config.json").write_text("{}", "utf-8")
    config = Config.load(None, [f"device.model={tmp_path}", "cluster.start_timeout_s=240"])
    before = own_children()  # another test's: a resource tracker lives as long as its process
    started: set[int] = set()

    def note(line: str) -> None:
        started.update(descendants(own_children() - before))

    with pytest.raises(TandemError) as caught:
        Tandem.launch(config, runtime="ray", progress=note)
    assert not alive(started), "a failed launch leaves nothing"
    assert str(tmp_path) in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_unreachable_cluster() -> None:
    started_s = time.monotonic()
    with pytest.raises(TandemError, match=r"127\.0\.0\.1:9") as caught:
        Tandem.connect("127.0.0.1:9")
    assert time.monotonic() - started_s < 30
    assert "tandem up" in str(caught.value)


@pytest.mark.nightly("starts a cluster of its own")
@pytest.mark.parametrize("after", ["nodes", "models"], ids=["while it starts", "while it answers"])
def test_ctrl_c_cleans_up(after: str) -> None:
    command = [sys.executable, "-m", "tandem", "ask", "Which game should Mira try?", "--temperature", "1.5"]
    command += ["--max-new-tokens", "400", "--runtime", "ray"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if after in line:
            break
    assert process.poll() is None, seen
    family = descendants({process.pid})
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not alive(family)
