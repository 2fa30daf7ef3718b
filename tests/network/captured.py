"""Runs in the device's host: asks about a private document, then something that is meant to be seen, and captures both.

Usage: captured.py NETWORK FOLDER; FOLDER/asked.json holds the document's sentence, the question, and the name of a file
that the device's filter lets through besides. The packets and what came of it go there too. For each data plane one
cluster.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray

from tandem.cli import main as tandem_command
from tandem.client import Tandem
from tandem.cluster.launch import find_party
from tandem.config import Config
from tandem.lab.latency.cluster import launch
from tandem.lab.netlab import NetLab, Shape
from tandem.lab.netlab.capture import capturing, data_plane_flows
from tandem.lab.training.bundle import DEVICE_CORPUS
from tandem.topology import Party


def main(name: str, folder: str) -> None:
    out, lab = Path(folder), NetLab(name)
    marker, question, file = json.loads((out / "asked.json").read_text("utf-8"))
    corpus = shutil.copytree(DEVICE_CORPUS, out / "corpus")
    (corpus / "secret.md").write_text(f"# Umbrellas\n\n{marker}\n", "utf-8")
    assert tandem_command(["index", "device", str(corpus), "--out", str(out / "index")]) == 0
    for plane in ("socket", "ray"):
        config = Config.load(None, ("cluster.start_timeout_s=300", f"device.index={out / 'index'}"))
        (out / plane).mkdir()
        one_cluster(
            lab,
            replace(config, link=replace(config.link, data_plane=plane)),
            out / plane,
            marker,
            question,
            file,
        )


def one_cluster(lab: NetLab, config: Config, out: Path, marker: str, question: str, file: str) -> None:
    lab.shape(Shape(rtt_s=0.05))
    before = lab.counters(Party.CLOUD)
    private = capturing(lab, out / "private.pcap")
    private.__enter__()  # before the cluster is there: frames can be read from a connection's first byte on only
    with launch(lab, config, print) as tandem:
        found = ask(tandem, question, device_filter={"source": ["secret.md", file]})
        found["flows"] = data_plane_flows(lab, tandem)
        private.__exit__(None, None, None)
        found["interface"] = asdict(lab.counters(Party.CLOUD).since(before))
        with capturing(lab, out / "control.pcap"):
            ask(tandem, marker)
        handles = find_party(Party.DEVICE, tandem.config)
        found["tokenizer"] = ray.get(handles["decoder"].tokenizer_json.remote())
        found["vocab_size"] = tandem.described[Party.DEVICE]["vocab_size"]
    (out / "results.json").write_text(json.dumps(found), "utf-8")


def ask(tandem: Tandem, question: str, **options: Any) -> dict[str, Any]:
    answer = tandem.query(question, seed=3, temperature=1.0, **options)
    sources = [source.title for source in answer.sources if source.party is Party.DEVICE]
    return {"answer": answer.text, "sources": sources, "statistics": asdict(answer.statistics)}


if __name__ == "__main__":
    main(*sys.argv[1:])
