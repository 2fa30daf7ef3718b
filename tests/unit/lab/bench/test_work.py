"""What actors have done, from what they say before and after; and what rollback cost a side."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from tandem.config.schema import Config
from tandem_lab.bench.records import lost_s
from tandem_lab.bench.work import Work


class Cluster:
    """Says what a cluster says after `count` queries."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.config = Config()

    def status(self) -> dict[str, Any]:
        extra = {"num_forwards": 12.0 * self.count, "num_abandoned": self.count, "decode_s": 0.5 * self.count}
        actors: list[dict[str, Any]] = []
        for party, other in (("device", "cloud"), ("cloud", "device")):
            links = {f"{other}/draft_queue": {"writes": 7 * self.count}} if self.count else {}
            for role, more, seen in (("decoder", extra, {}), ("draft_queue", {}, links)):
                values = {"cpu_s": self.count, "extra": more, "links": seen}
                actors.append({"name": f"{party}/{role}", "pid": len(actors), **values})
        return {"actors": actors}


def test_what_came_on_top() -> None:
    work = Work.of(Cluster(3)).since(Work.of(Cluster(0)))  # type: ignore[arg-type]
    assert work.num_forwards == {"device": 36, "cloud": 36}
    assert work.num_abandoned == {"device": 3, "cloud": 3}
    assert work.decode_s == {"device": 1.5, "cloud": 1.5}
    assert work.num_messages == {"device": 21, "cloud": 21}
    assert set(work.cpu_s.values()) == {3}


def test_actors_that_share_a_process_count_once() -> None:
    cluster = Cluster(3)
    status = cluster.status()
    for actor in status["actors"]:
        actor["pid"] = 7  # of both parties' machines
    cluster.status = lambda: status  # type: ignore[method-assign]
    work = Work.of(cluster)  # type: ignore[arg-type]
    assert work.cpu_s == {"device/decoder+draft_queue": 3, "cloud/decoder+draft_queue": 3}


def test_drafts_that_were_thrown_away_have_their_share_of_the_time() -> None:
    assert lost_s(10, 6, 1.0) == pytest.approx(0.4)
    assert lost_s(6, 6, 1.0) == 0.0
    assert lost_s(4, 6, 1.0) == 0.0
    assert isnan(lost_s(0, 6, 0.0))
