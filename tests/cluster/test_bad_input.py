"""What a user can get wrong at start: one sentence with the value and the remedy, and nothing is left running."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem import Config, Tandem
from tandem.corpora import WEIGHTS
from tandem.errors import TandemError

from .conftest import alive, descendants

SLOW_START = "cluster.start_timeout_s=240"


def failing_launch(*overrides: str) -> str:
    """The sentence of a launch that must fail, after which no node of it runs."""
    started: list[int] = []
    before = set(own_children())  # another test's: a resource tracker lives as long as its process

    def note(line: str) -> None:
        started.extend(descendants({int(folder.name) for folder in set(own_children()) - before}))

    with pytest.raises(TandemError) as caught:
        Tandem.launch(Config.load(None, (*overrides, SLOW_START)), runtime="ray", progress=note)
    assert not alive(set(started)), "a failed launch leaves nothing"
    return str(caught.value)


def own_children() -> list[Path]:
    """Processes that this one has started: `ray start`."""
    mine = Path("/proc/self").resolve().name
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == mine:
                found.append(folder)
        except OSError:
            continue
    return found


@pytest.mark.nightly("starts a cluster of its own")
def test_a_model_that_its_decoder_cannot_load(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    sentence = failing_launch(f"device.model={tmp_path}")
    assert str(tmp_path) in sentence
    assert "Traceback" not in sentence


def test_different_tokenizers(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(WEIGHTS, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(TandemError) as caught:
        Tandem.launch(Config.load(None, [f"cloud.model={other}"]), runtime="inline")
    sentence = str(caught.value)
    assert sentence.startswith("Both parties must have the same vocabulary, the device has ")
    assert sentence.endswith("use models that share a tokenizer.")


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
