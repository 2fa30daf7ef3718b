"""Metrics for Prometheus: counters and histograms of queries and requests, and what the parties count themselves.

Names say their units; labels are parties, paths of the app, and words of Tandem, never what a client wrote.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tandem import __version__
from tandem.events import DoneEvent, Event, PeerEvent, TokenEvent, WaitEvent
from tandem.topology import Party

TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
QUERIES_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """All metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def count(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"tandem_{name}", meaning, labels, registry=self._registry)

        def show(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"tandem_{name}", meaning, labels, registry=self._registry)

        def time_of(name: str, meaning: str, *labels: str, buckets: Sequence[float] = QUERIES_S) -> Histogram:
            name = f"tandem_{name}_seconds"
            return Histogram(name, meaning, labels, buckets=buckets, registry=self._registry)

        self.requests = count("http_requests", "HTTP requests", "method", "path", "status")
        self.request_duration = time_of(
            "http_request_duration", "From a request to the end of its response", "path"
        )
        self.connections_open = show("http_connections_open", "Connections of HTTP clients")
        self.connections_dropped = count(
            "http_connections_dropped",
            "Connections that were slow, malformed or too many, by reason",
            "reason",
        )
        self.queries_open = show("queries_open", "Queries of HTTP clients that are open or wait")
        self.queries_refused = count("queries_refused", "Queries refused because too many were open")
        self.queries = count("queries", "Ended queries, by reason", "reason")
        self.queries_degraded = count(
            "queries_degraded", "Answers of which a part was decided without a peer"
        )
        self.own_system_prompts = count(
            "own_system_prompts",
            "Queries with a system prompt of their own; caches of documents stored with another do not serve them",
        )
        self.late_votes = count(
            "late_votes", "Tokens decided without the vote of the cloud, which came too late"
        )
        self.tokens = count("tokens", "Committed tokens")
        self.drafts_accepted = count("drafts_accepted", "Tokens that equal the draft of a party", "party")
        self.rollbacks = count("rollbacks", "Tokens that differ from the draft of a party", "party")
        self.first_token = time_of("first_token", "From the start of a query to its first token")
        self.inter_token = time_of("inter_token", "Between two tokens of an answer", buckets=TOKENS_S)
        self.queue_wait = time_of("queue_wait", "How long a query waited at its home for an open one to end")
        self.peer_losses = count("peer_losses", "Times that a peer was lost during a query", "party")
        self.round_trip = show("link_round_trip_seconds", "Last measured round trip of the link")
        show("build_info", "Version of Tandem", "version").labels(__version__).set(1)
        self.by_acceptance = {
            party: (self.rollbacks.labels(party), self.drafts_accepted.labels(party))
            for party in (Party.DEVICE, Party.CLOUD)
        }

    def render(self, state: dict[str, Any], peers: Mapping[str, bool]) -> bytes:
        """The text that Prometheus reads. state: of `Tandem.status`. peers: whether each of them is connected."""
        parties = CollectorRegistry()
        parties.register(_PartyCollector(state, peers))
        return generate_latest(self._registry) + generate_latest(parties)


class QueryObserver:
    """Counts the events of one query."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start_s = time.monotonic()
        self._last_token_s: float | None = None
        self._waiting_since_s: float | None = None
        self._reason = "abandoned"  # where its client left, or it ended without a last event
        metrics.queries_open.inc()

    def on_event(self, event: Event) -> None:
        """The next event."""
        metrics, now_s = self._metrics, time.monotonic()
        match event:
            case WaitEvent():
                self._waiting_since_s = now_s
                return
            case TokenEvent():
                metrics.tokens.inc()
                if not event.is_alone:
                    metrics.by_acceptance[Party.DEVICE][event.device_accepted].inc()
                    metrics.by_acceptance[Party.CLOUD][event.cloud_accepted].inc()
                if self._last_token_s is None:
                    metrics.first_token.observe(now_s - self._start_s)
                else:
                    metrics.inter_token.observe(now_s - self._last_token_s)
                self._last_token_s = now_s
                if math.isfinite(event.rtt_s):
                    metrics.round_trip.set(event.rtt_s)
            case PeerEvent(is_alone=True):
                metrics.peer_losses.labels(event.party).inc()
            case DoneEvent():
                self._reason = event.reason
                metrics.late_votes.inc(event.statistics.num_late_votes)
                if event.statistics.degraded_from is not None:
                    metrics.queries_degraded.inc()
        if self._waiting_since_s is not None:
            metrics.queue_wait.observe(now_s - self._waiting_since_s)
            self._waiting_since_s = None

    def on_end(self) -> float:
        """The query has ended, in whatever way, after so many seconds."""
        self._metrics.queries_open.dec()
        self._metrics.queries.labels(self._reason).inc()
        return time.monotonic() - self._start_s


@dataclass(eq=False)
class _PartyCollector:
    """The actors' own counters at one moment."""

    state: dict[str, Any]
    peers: Mapping[str, bool]

    def collect(self) -> Iterable[Metric]:
        def count(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"tandem_{name}", meaning, labels=labels)

        def show(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"tandem_{name}", meaning, labels=labels)

        by_actor = ("party", "actor")
        link = count("link_bytes", "Bytes on the link between draft queues", "party", "peer", "direction")
        sessions = show("sessions_open", "Sessions of a party", "party")
        waiting = show("sessions_waiting", "Queries that wait at a party", "party")
        alive = show("actor_up", "Whether an actor is alive", *by_actor)
        decoding = show("decoder_sessions_open", "Sessions that a decoder has", *by_actor)
        hits = count("document_cache_hits", "Documents whose model state was stored", *by_actor)
        misses = count("document_cache_misses", "Documents that a model had to read", *by_actor)
        connected = show("peer_connected", "Whether a peer of the home party is connected", "party")
        for actor in self.state["actors"]:
            name, kind = actor["party"], actor["name"].partition("/")[2]
            extra = actor.get("extra", {})
            alive.add_metric([name, kind], actor["state"] == "alive")
            if "num_waiting" in extra:  # a draft queue
                sessions.add_metric([name], actor["num_sessions"])
                waiting.add_metric([name], extra["num_waiting"])
                for address, counters in actor["links"].items():
                    if address.endswith("/draft_queue"):
                        for direction in ("sent", "received"):
                            labels = [name, address.partition("/")[0], direction]
                            link.add_metric(labels, counters[f"{direction}_bytes"])
            if "num_forwards" in extra:  # a decoder
                decoding.add_metric([name, kind], actor["num_sessions"])
            if "kv_hits" in extra:
                hits.add_metric([name, kind], extra["kv_hits"])
                misses.add_metric([name, kind], extra["kv_misses"])
        for peer, is_connected in self.peers.items():
            connected.add_metric([peer], is_connected)
        return [link, sessions, waiting, alive, hits, misses, decoding, connected]
