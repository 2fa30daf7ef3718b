"""Runs in the device's host: asks about a private document, then something that is meant to be seen, and captures both.

Usage: captured.py NETWORK FOLDER; FOLDER/asked.json holds the document's sentence, pieces of it, the question, and the
name of a file that the device's filter lets through besides. The packets and what came of it go there too. The cluster
is searched for the pieces and scanned for open ports.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import ray

from tandem.cli import main as tandem_command
from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.corpora import model_path
from tandem.engine.places import load_tokenizer
from tandem.plugins.ray.actors import raw_rows
from tandem.topology import PARTIES, Party
from tandem_lab.bench.places import launch
from tandem_lab.bundled import DEVICE_CORPUS
from tandem_lab.netlab import NetLab, Shape, tools
from tandem_lab.netlab.capture import capturing, data_plane_flows
from tests.leaks import files_holding, open_ports, processes_holding
from tests.server.running import serving

PUBLIC = ("raylet", "draft_queue", "tandem_tokens_total")
"""What logs, listings and metrics hold."""


def main(name: str, folder: str) -> None:
    out, lab = Path(folder), NetLab(name)
    marker, pieces, question, file = json.loads((out / "asked.json").read_text("utf-8"))
    corpus = shutil.copytree(DEVICE_CORPUS, out / "corpus")
    (corpus / "secret.md").write_text(f"# Umbrellas\n\n{marker}\n", "utf-8")
    assert tandem_command(["index", "device", str(corpus), "--out", str(out / "index")]) == 0
    config = Config.load(None, ("cluster.start_timeout_s=300", f"device.index={out / 'index'}"))
    lab.shape(Shape(rtt_s=0.05))
    before = lab.counters(Party.CLOUD)
    private = capturing(lab, out / "private.pcap")
    private.__enter__()  # before the cluster is there: frames can be read from a connection's first byte on only
    with launch(lab, config, print) as tandem:
        found = ask(tandem, question, device_filter={"source": ["secret.md", file]})
        found["flows"] = data_plane_flows(lab, tandem)
        private.__exit__(None, None, None)
        found["interface"] = asdict(lab.counters(Party.CLOUD).since(before))
        found["client_pid"] = os.getpid()
        found["leaks"] = leaks(lab, tandem, pieces)
        with capturing(lab, out / "control.pcap"):
            ask(tandem, marker)
        found["control_leaks"] = leaks(lab, tandem, [*pieces, *PUBLIC])
        found["ports"] = ports(lab)
        found["tokenizer"] = load_tokenizer(model_path(tandem.config.with_names().device.model))[0].to_str()
        found["vocab_size"] = tandem.described[Party.DEVICE]["vocab_size"]
    (out / "results.json").write_text(json.dumps(found), "utf-8")


def leaks(lab: NetLab, tandem: Tandem, pieces: list[str]) -> dict[str, list[str]]:
    """Where the pieces can be seen: in processes of each host, and in what Ray and Tandem write, list and count."""
    listed = json.dumps([tandem.status(), ray.nodes()], default=str) + b"".join(raw_rows()).decode("latin-1")
    counted = metrics_of(tandem)
    return {
        **{host: processes_holding(pids(lab, host), pieces) for host in PARTIES},
        "logs": files_holding([Path(tempfile.gettempdir())], pieces),  # all files of this network's processes
        "listings": [piece for piece in pieces if piece in listed],
        "metrics": [piece for piece in pieces if piece in counted],
    }


def pids(lab: NetLab, host: str) -> list[int]:
    """All processes of a host."""
    namespace = lab.enter(host)[-1]
    return [int(pid) for pid in tools.run(["ip", "netns", "pids", namespace]).split()]


def metrics_of(tandem: Tandem) -> str:
    """The page of `/metrics`."""
    with serving(tandem) as server:
        return httpx.get(f"{server.url}/metrics", timeout=60).text


def ports(lab: NetLab) -> dict[str, Any]:
    """What a scan of each host from the other one finds, and whose it is: the command that listens there."""
    lab.shape(Shape())
    found = {}
    for host, other in zip(PARTIES, reversed(PARTIES), strict=True):
        owners = listening(lab, host)
        scanned = open_ports(lab.enter(other), lab.address(host))
        found[host] = {port: owners.get(port, "nobody") for port in scanned}
    return found


def listening(lab: NetLab, host: str) -> dict[int, str]:
    """Command by TCP port of a host."""
    command = [*lab.enter(host), "ss", "--no-header", "--listening", "--numeric", "--tcp", "--processes"]
    owners = {}
    for line in tools.run(command).splitlines():
        port, process = line.split()[3].rpartition(":")[2], re.search(r"pid=(\d+)", line)
        assert process is not None, line
        owners[int(port)] = (
            Path(f"/proc/{process[1]}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        )
    return owners


def ask(tandem: Tandem, question: str, **options: Any) -> dict[str, Any]:
    answer = tandem.query(question, seed=3, temperature=1.0, **options)
    sources = [source.title for source in answer.sources if source.party is Party.DEVICE]
    return {"answer": answer.text, "sources": sources, "statistics": asdict(answer.statistics)}


if __name__ == "__main__":
    main(*sys.argv[1:])
