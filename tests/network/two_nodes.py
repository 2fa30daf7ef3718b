"""Runs in the device's host: the same questions over a perfect link, a long one, and one that goes away and returns.

Usage: two_nodes.py NETWORK FILE; what came of it goes into FILE as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.events import Answer, Event, TokenEvent, collect
from tandem.topology import PARTIES
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.bench.places import launch
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.netlab import NetLab, Shape

FAR = Shape(rtt_s=0.3)
AWAY_S = 10.0
SETTINGS = ("cluster.start_timeout_s=300", "link.on_peer_loss=wait")
SLOW = Experiments(min_decode_time_s=dict.fromkeys(PARTIES, 0.08))
"""So that the link goes away in the middle of an answer."""


def main(name: str, out: str) -> None:
    lab, results = NetLab(name), dict[str, Any]()
    config = Config.load(None, SETTINGS)
    questions = [each.question for each in (read_bundled_questions()[0], read_bundled_questions()[3])]
    with launch(lab, config, lambda line: print(line, flush=True), SLOW) as tandem:
        for temperature in (0.0, 1.0):
            for number, question in enumerate(questions):
                options = {"seed": 7 + number, "temperature": temperature}
                lab.shape(Shape())
                found = {"near": as_dict(tandem.query(question, max_window=1, **options))}
                lab.shape(FAR)
                for placement in ("mirror", "device"):
                    found[placement] = as_dict(tandem.query(question, placement=placement, **options))
                results[f"{temperature:g}/{number}"] = found
        # In this order: after an outage Ray's own connections, which open a query, wait for TCP's next repetition.
        for rule in ("continue", "wait"):
            tandem.config = replace(config, link=replace(config.link, on_peer_loss=rule))
            results[rule] = as_dict(through_an_outage(tandem, lab, questions[0]))
        folders = [tandem.socket_folder, *(node.directory or node.log for node in tandem.nodes)]
        results["folders"] = folders
    Path(out).write_text(json.dumps(results), "utf-8")


def through_an_outage(tandem: Tandem, lab: NetLab, question: str) -> Answer:
    """The link goes away at the first token, for ten seconds."""
    lab.shape(FAR)
    back = threading.Timer(AWAY_S, lab.shape, [FAR])
    events: list[Event] = []
    for event in tandem.stream(question, seed=7, temperature=1.0):
        events.append(event)
        if isinstance(event, TokenEvent) and event.step == 0:
            lab.shape(replace(FAR, loss=1.0))
            back.start()
    back.join()
    return collect(events, 7)


def as_dict(answer: Answer) -> dict[str, Any]:
    return {
        "tokens": answer.token_ids,
        "reason": answer.reason,
        "degraded_from": answer.statistics.degraded_from,
        "took_s": answer.statistics.total_s,
        "rejected": sum(not token.cloud_accepted for token in answer.tokens),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
