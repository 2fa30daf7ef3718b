"""What the actors of parties count of themselves, as figures with names and labels, for pages that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tandem.protocol.replicas import is_decoder


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric; its name says the unit."""

    name: str
    help: str
    labels: tuple[str, ...]
    is_count: bool = False  # only grows, and starts again with its actor


LINK_BYTES = Figure(
    "tandem_link_bytes",
    "Bytes on the link between draft queues",
    ("party", "peer", "direction"),
    is_count=True,
)
SESSIONS = Figure("tandem_sessions_open", "Sessions of a party", ("party",))
WAITING = Figure("tandem_sessions_waiting", "Queries that wait at a party", ("party",))
ALIVE = Figure("tandem_actor_up", "Whether an actor is alive", ("party", "actor"))
HITS = Figure(
    "tandem_document_cache_hits", "Documents whose model state was stored", ("party", "actor"), is_count=True
)
MISSES = Figure(
    "tandem_document_cache_misses", "Documents that a model had to read", ("party", "actor"), is_count=True
)
DECODING = Figure("tandem_decoder_sessions_open", "Sessions that a decoder has", ("party", "actor"))
MOVED = Figure(
    "tandem_sessions_moved",
    "Sessions given to another decoder when theirs was lost",
    ("party",),
    is_count=True,
)
FIGURES = (LINK_BYTES, SESSIONS, WAITING, ALIVE, HITS, MISSES, DECODING, MOVED)


def read_figures(actors: Iterable[dict[str, Any]]) -> Iterator[tuple[Figure, tuple[str, ...], float]]:
    """Each figure with the values of its labels. actors: of `Tandem.status`."""
    for actor in actors:
        party, kind = actor["party"], actor["name"].partition("/")[2]
        yield ALIVE, (party, kind), actor["state"] == "alive"
        extra = actor.get("extra", {})
        if kind == "draft_queue" and "num_sessions" in actor:
            yield SESSIONS, (party,), actor["num_sessions"]
            yield WAITING, (party,), extra.get("num_waiting", 0)
            yield MOVED, (party,), extra.get("num_moved", 0)
            for labels, value in _link_bytes(actor["links"]):
                yield LINK_BYTES, (party, *labels), value
        if is_decoder(kind) and "num_sessions" in actor:
            yield DECODING, (party, kind), actor["num_sessions"]
        if is_decoder(kind) and "kv_hits" in extra:
            yield HITS, (party, kind), extra["kv_hits"]
            yield MISSES, (party, kind), extra["kv_misses"]


def _link_bytes(links: dict[str, dict[str, int]]) -> Iterator[tuple[tuple[str, str], int]]:
    for name, counters in links.items():
        peer, _, kind = name.partition("/")
        if kind == "draft_queue":
            for direction in ("sent", "received"):
                yield (peer, direction), counters[f"{direction}_bytes"]
