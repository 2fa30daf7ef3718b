"""The metrics page by the official parser, its figures, and the dashboard that reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

import tandem
from tandem.events import DoneEvent, PeerEvent, SessionStatistics, WaitEvent
from tandem.plugins.server.metrics import Metrics, QueryObserver
from tests.server.running import QUESTION, read_metrics
from tests.token_events import committed

DASHBOARD = Path(tandem.__file__).parent / "plugins" / "server" / "grafana.json"


def changes(http: httpx.Client, before: dict[str, float]) -> dict[str, float]:
    after = read_metrics(http.get("/metrics").text)
    return {name: value - before.get(name, 0) for name, value in after.items()}


def test_an_answer_shows_in_the_metrics(http: httpx.Client) -> None:
    before = read_metrics(http.get("/metrics").text)
    chat = {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}], "seed": 5}
    done = http.post("/v1/chat/completions", json=chat).json()
    http.post("/v1/chat/completions", json=chat | {"n": 0})
    changed, statistics = changes(http, before), done["tandem"]["statistics"]
    num_tokens = statistics["num_tokens"]
    assert changed["tandem_tokens_total{}"] == num_tokens
    assert changed["tandem_first_token_seconds_count{}"] == 1
    assert changed["tandem_inter_token_seconds_count{}"] == num_tokens - 1
    assert changed['tandem_queries_total{"reason": "eos"}'] == 1
    for party in ("device", "cloud"):
        accepted = statistics[f"num_{party}_accepted"]
        assert changed[f'tandem_drafts_accepted_total{{"party": "{party}"}}'] == accepted
        assert changed[f'tandem_rollbacks_total{{"party": "{party}"}}'] == num_tokens - accepted
    sent = changed['tandem_link_bytes_total{"direction": "sent", "party": "device", "peer": "cloud"}']
    assert sent >= statistics["sent_bytes"] > 0
    for status in ("200", "400"):
        labels = json.dumps({"method": "POST", "path": "/v1/chat/completions", "status": status})
        assert changed[f"tandem_http_requests_total{labels}"] == 1


def test_names_say_their_units_and_have_help_and_the_dashboard_reads_those_that_exist(
    http: httpx.Client,
) -> None:
    http.post("/v1/tandem/events", json={"question": QUESTION, "max_new_tokens": 2})
    page = http.get("/metrics").text
    for family in text_string_to_metric_families(page):
        assert family.documentation
        assert family.name.startswith("tandem_")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
    samples = {name.partition("{")[0] for name in read_metrics(page)}
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for query in queries for name in re.findall(r"\btandem_\w+", query)}
    assert len(named) > 10
    assert named <= samples


def test_waits_losses_and_clients_that_leave_are_counted() -> None:
    metrics = Metrics()
    query, other = QueryObserver(metrics), QueryObserver(metrics)
    query.on_event(WaitEvent(num_ahead=1))
    query.on_event(PeerEvent(step=0, is_alone=True, party="cloud"))
    query.on_event(committed(0, text="x", cloud_accepted=False, rtt_s=0.25))
    statistics = SessionStatistics(num_tokens=9, num_late_votes=3, degraded_from=0)
    query.on_event(DoneEvent(reason="length", statistics=statistics))
    query.on_end()
    other.on_end()
    counted = read_metrics(metrics.render({"actors": []}, {"cloud": False}).decode())
    assert counted['tandem_peer_connected{"party": "cloud"}'] == 0
    assert counted["tandem_queue_wait_seconds_count{}"] == 1
    assert counted['tandem_peer_losses_total{"party": "cloud"}'] == 1
    assert counted["tandem_queries_degraded_total{}"] == 1
    assert counted["tandem_late_votes_total{}"] == 3
    assert counted['tandem_queries_total{"reason": "length"}'] == 1
    assert counted['tandem_queries_total{"reason": "abandoned"}'] == 1
    assert counted["tandem_queries_open{}"] == 0
    assert counted["tandem_link_round_trip_seconds{}"] == 0.25
