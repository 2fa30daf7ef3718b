"""A party's figures in Ray's metrics; the same figures on the server's page are tested there."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Any

import pytest
from ray.util.metrics import Counter, Gauge

from tandem.actors.base import Runtime
from tandem.cluster import supervisor
from tandem.cluster.metrics import RayMetrics
from tandem.cluster.supervisor import Watch
from tandem.config.schema import Config
from tandem.figures import FIGURES
from tandem.topology import Party


class Recorded:
    """What Ray was told."""

    def __init__(self) -> None:
        self.counts: Tally[str] = Tally()
        self.gauges: dict[str, float] = {}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    told = Recorded()

    def name(metric: Counter | Gauge, tags: dict[str, str]) -> str:
        info = metric.info
        assert set(tags) == set(info["tag_keys"]), "Ray drops what lacks a tag"
        assert info["description"]
        return info["name"] + "".join(f" {value}" for value in tags.values())

    def inc(metric: Counter, value: float, tags: dict[str, str]) -> None:
        assert value > 0, "Ray refuses to add nothing"
        told.counts[name(metric, tags)] += value

    monkeypatch.setattr(Counter, "inc", inc)
    monkeypatch.setattr(
        Gauge, "set", lambda metric, value, tags: told.gauges.update({name(metric, tags): value})
    )
    return told


def a_party(sent: int, *, state: str = "alive", hits: int = 2) -> list[dict[str, Any]]:
    """Two actors of the device, as `Tandem.status` has them."""
    link = {"sent_bytes": sent, "received_bytes": 0}
    links = {"cloud/draft_queue": link, "device/decoder": link}
    queue = {"num_sessions": 1, "links": links, "extra": {"num_waiting": 3, "num_moved": 4}}
    return [
        {"party": "device", "name": "device/draft_queue", "state": state}
        | (queue if state == "alive" else {}),
        {
            "party": "device",
            "name": "device/decoder",
            "state": "alive",
            "num_sessions": 5,
            "extra": {"kv_hits": hits, "kv_misses": 1},
        },
    ]


def test_every_figure_is_recorded(recorded: Recorded) -> None:
    RayMetrics().record(a_party(100))
    assert recorded.counts == {
        "tandem_link_bytes device cloud sent": 100,
        "tandem_document_cache_hits device decoder": 2,
        "tandem_document_cache_misses device decoder": 1,
        "tandem_sessions_moved device": 4,
    }
    assert recorded.gauges == {
        "tandem_actor_up device draft_queue": 1,
        "tandem_actor_up device decoder": 1,
        "tandem_sessions_open device": 1,
        "tandem_sessions_waiting device": 3,
        "tandem_decoder_sessions_open device decoder": 5,
    }
    names = {each.partition(" ")[0] for each in (*recorded.counts, *recorded.gauges)}
    assert names == {figure.name for figure in FIGURES}


def test_a_count_grows_by_what_came_since_and_goes_on_after_a_restart(recorded: Recorded) -> None:
    metrics = RayMetrics()
    for sent in (100, 100, 150):
        metrics.record(a_party(sent))
    assert recorded.counts["tandem_link_bytes device cloud sent"] == 150
    metrics.record(a_party(0, state="dead"))
    assert recorded.gauges["tandem_actor_up device draft_queue"] == 0
    metrics.record(a_party(30))
    assert recorded.counts["tandem_link_bytes device cloud sent"] == 180


def test_figures_that_cannot_be_had_do_not_end_the_watch(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        raise OSError("no cluster")

    monkeypatch.setattr(supervisor, "read_actors", lambda *_: [])
    monkeypatch.setattr(supervisor, "read_reports", hang)
    watch = Watch(Party.DEVICE, Runtime(secret=b"secret", directory="", config=Config()))
    watch.record(RayMetrics())
    assert not recorded.gauges

    async def reports(*_: object) -> list[dict[str, Any]]:
        return a_party(1)

    monkeypatch.setattr(supervisor, "read_reports", reports)
    watch.record(RayMetrics())
    assert recorded.gauges
