"""The trace file: what the Trace Event Format asks of every event."""

from __future__ import annotations

import json
from itertools import pairwise
from math import isfinite
from typing import Any

import pytest

from tandem_lab.simulation.link import Link
from tandem_lab.timeline.intervals import timeline
from tandem_lab.timeline.perfetto import PROCESSES, to_json, trace
from tests.unit.lab.timeline.timelines import by_hand, run, token

REQUIRED_ACTORS = {"name", "ph", "ts", "pid", "tid"}


def loaded(text: str) -> dict[str, Any]:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    value: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return value


def check(events: list[dict[str, Any]]) -> None:
    """The structure of a trace."""
    named = {
        (each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"
    }
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert sorted(processes.values()) == ["answer", "cloud", "device"]
    assert len({tid for _, tid in named}) == len(named)
    for each in events:
        assert set(each) >= REQUIRED_ACTORS
        assert each["ph"] in "XiCM"
        assert isinstance(each["ts"], int)
        assert each["ts"] >= 0
        assert each["pid"] in processes
        if each["ph"] == "X":
            assert isinstance(each["dur"], int)
            assert each["dur"] >= 0
        if each["ph"] == "i":
            assert each["s"] == "t"
        if each["ph"] in "Xi":
            assert (each["pid"], each["tid"]) in named
        if each["ph"] == "C":
            assert all(isinstance(value, float | int) and isfinite(value) for value in each["args"].values())
    for thread in named:
        slices = [each for each in events if each["ph"] == "X" and (each["pid"], each["tid"]) == thread]
        slices.sort(key=lambda each: each["ts"])
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(slices))


def test_by_hand() -> None:
    found = loaded(to_json(timeline(by_hand(), "greedy")))
    assert list(found) == [
        "traceEvents",
        "tandem",
    ]  # in this order: a viewer stops at a key that it does not know
    events = found["traceEvents"]
    check(events)
    first = next(each for each in events if each["name"] == "draft 0" and each["cat"] == "decode")
    assert (first["ts"], first["dur"], first["pid"]) == (350_000, 50_000, 1)
    assert first["args"] == {
        "step": 0,
        "epoch": 0,
        "accepted": True,
        "expected acceptance": 0.7,
        "estimate": "its time on the cloud's side is half a round trip from what the device saw",
    }
    assert [
        each["ts"] for each in events if each.get("cat") == "answer" and each["name"].startswith("to ")
    ] == [560_000]
    commits = [each for each in events if each["ph"] == "i" and "text" in each["args"]]
    assert [each["name"] for each in commits] == [
        "0: device and cloud",
        "1: cloud",
        "2: neither",
        "3: device",
    ]
    assert "wait for cloud (ms)" not in commits[3]["args"]  # not known
    counted = [(each["ts"], each["args"]["value"]) for each in events if each["name"] == "delta Z (ms)"]
    assert counted == [(510_000, -10), (560_000, -10), (950_000, 20), (1_510_000, 20)]


def test_only_what_lies_on_the_cloud_is_called_an_estimate() -> None:
    events = trace(timeline(by_hand()))["traceEvents"]
    for each in events:
        if each["ph"] == "X" and each["cat"] == "decode":
            assert ("estimate" in each["args"]) == (each["pid"] == 1)
        if each["ph"] == "X" and each["cat"] == "link":
            assert "estimate" in each["args"]


@pytest.mark.parametrize("placement", ["device", "cloud", "greedy", "mirror", "random"])
def test_of_runs_over_a_link_that_jitters_and_drops(placement: str) -> None:
    found = run(3, placement, Link(delay_s=0.25, jitter_s=0.1, drop=0.05, wave=0.2))
    value = loaded(to_json(found))
    check(value["traceEvents"])
    assert len(value["tandem"]["steps"]) == 48
    verdicts = [each for each in value["traceEvents"] if each["name"].startswith("verdict ")]
    assert bool(verdicts) == (placement != "mirror")


def test_waits_and_decisions_are_a_row_of_their_own() -> None:
    events = trace(timeline([token(0, 0.3, 0.5, 0.51), token(1, 0.4, 0.55, 0.56)]))["traceEvents"]
    waits = [(each["name"], each["ts"], each["dur"]) for each in events if each.get("cat") == "wait"]
    assert waits == [
        ("wait for the cloud", 0, 500_000),
        ("decide", 500_000, 10_000),
        ("wait for the cloud", 510_000, 40_000),
        ("decide", 550_000, 10_000),
    ]


def test_an_empty_one() -> None:
    check(trace(timeline([]))["traceEvents"])


def test_the_parties_stand_above_the_answer() -> None:
    assert sorted(PROCESSES.values()) == [1, 2, 3]
    assert PROCESSES[None] == 3
