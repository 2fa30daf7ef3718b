"""Timelines: a case reckoned by hand, runs under a virtual clock, and events with gaps."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import pairwise
from math import isnan, nan
from typing import Any

import pytest

from tandem.events import (
    Answer,
    DoneEvent,
    EstimateEvent,
    PlacementEvent,
    SessionStatistics,
    TokenEvent,
    collect,
)
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.timeline.intervals import Span, timeline
from tests.unit.lab.timeline.timelines import by_hand, estimate, run, token


def span(start_s: float, end_s: float, is_estimate: bool = False) -> Any:
    """To compare a Span with."""
    return pytest.approx((start_s, end_s)), is_estimate


def seen(found: Span | None) -> Any:
    assert found is not None
    return (found.start_s, found.end_s), found.is_estimate


def test_waits_of_table_1_by_hand() -> None:
    steps = timeline(by_hand()).steps
    waits = [(step.wait_for_device_s, step.wait_for_cloud_s) for step in steps]
    # From the query, then from the commits at 0.51, 0.56 and 0.95.
    assert waits[:3] == [pytest.approx((0.30, 0.50)), pytest.approx((0, 0.04)), pytest.approx((0.14, 0.06))]
    assert waits[3][0] == pytest.approx(0.55)
    assert isnan(waits[3][1])
    assert [step.waited_for for step in steps] == [Party.CLOUD, Party.CLOUD, Party.DEVICE, None]
    assert [step.pair_s for step in steps] == pytest.approx([0.50, 0.55, 0.70, 1.50])
    assert [step.decide_s for step in steps] == pytest.approx([0.01, 0.01, 0.25, 0.01])


def test_a_pair_that_waits_ready_costs_the_decision_alone() -> None:
    first, second = timeline([token(0, 0.1, 0.1, 0.5), token(1, 0.2, 0.3, 0.51)]).steps
    assert (second.wait_for_device_s, second.wait_for_cloud_s) == (0, 0)
    assert second.waited_for is None
    assert second.pair_s == first.committed_s
    assert second.decide_s == pytest.approx(0.01)


def test_spans_by_hand() -> None:
    first, _, third, last = timeline(by_hand()).steps
    assert seen(first.device.decode) == span(0.20, 0.30)
    assert seen(first.device.link) == span(0.30, 0.40, True)
    assert seen(first.cloud.decode) == span(0.35, 0.40, True)
    assert seen(first.cloud.link) == span(0.40, 0.50, True)
    assert seen(first.verdict) == span(0.51, 0.61, True)
    assert seen(third.verdict) == span(0.85, 0.95, True)
    assert seen(last.device.decode) == span(1.40, 1.50)
    assert (last.device.link, last.cloud.decode, last.cloud.link, last.verdict) == (None,) * 4


def test_acceptance_is_accumulated_over_pairs() -> None:
    steps = timeline(by_hand()).steps
    assert [step.device.accepted_share for step in steps] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 3])
    assert [step.cloud.accepted_share for step in steps] == pytest.approx([1, 1, 2 / 3, 2 / 3])
    assert [step.device.epoch for step in steps] == [0, 0, 1, 2]


def test_the_estimate_of_a_step_is_the_latest_of_this_or_an_earlier_one() -> None:
    steps = timeline(by_hand()).steps
    assert [step.delta_z_s for step in steps] == [-0.01, -0.01, 0.02, 0.02]
    assert steps[1].estimate == estimate(0, -0.01)
    assert isnan(timeline([token(0, 0.1, 0.1, 0.2), estimate(1, 0.5)]).steps[0].delta_z_s)


@pytest.mark.parametrize(
    ("placement", "device_drafts", "verdicts"),
    [("device", False, True), ("cloud", True, True), ("greedy", True, True), ("mirror", True, False)],
)
def test_what_crosses_depends_on_the_placement(placement: str, device_drafts: bool, verdicts: bool) -> None:
    (step,) = timeline([token(0, 0.3, 0.5, 0.51)], placement).steps
    assert (step.device.link is not None, step.verdict is not None) == (device_drafts, verdicts)


def test_without_a_placement_the_device_sends_its_drafts_if_the_cloud_ever_decided() -> None:
    (step,) = timeline([token(0, 0.3, 0.5, 0.51)]).steps
    assert step.device.link is None
    assert timeline(by_hand()).steps[0].device.link is not None


@pytest.mark.parametrize("rtt_s", [nan, float("inf")])
def test_where_no_round_trip_was_measured_the_profilers_counts_or_nothing_is_reckoned(rtt_s: float) -> None:
    one = token(0, 0.3, 0.5, 0.51, rtt_s=rtt_s)
    (step,) = timeline([one, estimate(0, 0.0)]).steps
    assert seen(step.cloud.link) == span(0.375, 0.5, True)
    (step,) = timeline([one]).steps
    assert (step.cloud.link, step.cloud.decode, step.verdict) == (None, None, None)
    assert seen(step.device.decode) == span(0.2, 0.3)
    assert step.wait_for_cloud_s == 0.5


def test_a_token_whose_predecessor_is_missing_has_no_waits() -> None:
    (step,) = timeline([token(4, 0.3, 0.5, 0.51)]).steps
    assert isnan(step.wait_for_device_s)
    assert isnan(step.decide_s)
    assert step.waited_for is None


def test_events_may_come_from_an_answer_in_any_order() -> None:
    events = by_hand()
    tokens = tuple(event for event in events if isinstance(event, TokenEvent))
    estimates = tuple(event for event in events if isinstance(event, EstimateEvent))
    answer = Answer(
        text="",
        tokens=tokens,
        sources=(),
        reason="eos",
        seed=1,
        statistics=SessionStatistics(),
        estimates=estimates[::-1],
        placements=(PlacementEvent(step=2, aggregator=Party.CLOUD),),
    )
    found = timeline([*answer.estimates, *answer.placements, *answer.tokens])
    assert found.to_dict()["steps"] == timeline(events).to_dict()["steps"]
    assert found.handovers == answer.placements


def test_the_record_is_strict_json_and_holds_everything() -> None:
    record = json.loads(json.dumps(timeline(by_hand(), "greedy").to_dict(), allow_nan=False))
    assert record["placement"] == "greedy"
    assert record["handovers"] == [{"step": 2, "aggregator": "cloud"}]
    assert record["peer_losses"] == [{"step": 3, "is_alone": True, "reason": None, "party": "cloud"}]
    last = record["steps"][-1]
    assert last["cloud"]["decode"] is None
    assert last["wait_for_cloud_s"] is None
    assert last["device"]["decode"] == {"start_s": 1.4, "end_s": 1.5, "is_estimate": False}
    assert last["estimate"]["assumed"] == ["The round trip was not measured."]
    assert last["estimate"]["bytes_per_s"] is None
    assert set(last) == {each.name for each in fields(type(timeline(by_hand()).steps[0]))} | {
        "delta_z_s",
        "waited_for",
    }


def test_no_events_make_an_empty_timeline() -> None:
    found = timeline([])
    assert (found.steps, found.reason) == ((), None)
    json.dumps(found.to_dict(), allow_nan=False)


# ---- virtual runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["device", "cloud", "greedy", "mirror", "random"])
def test_bars_of_one_decoder_do_not_overlap_where_the_link_is_steady(placement: str) -> None:
    """So what is reckoned for the cloud is when it really happened, to the microseconds of the header's clock."""
    for seed in range(3):
        found = run(seed, placement, Link(delay_s=0.25))
        assert found.reason == "length"
        assert len(found.steps) == 48
        for party in PARTIES:
            spans = [each.decode for step in found.steps if (each := step.draft(party)).decode]
            assert spans or (placement == "cloud" and party is Party.CLOUD)
            assert all(one.end_s <= other.start_s + 1e-5 for one, other in pairwise(spans) if one and other)
            assert all(each.start_s >= 0 for each in spans if each)


def test_waits_and_decisions_add_up_to_the_time_between_commits() -> None:
    found = run(1, "greedy", Link(delay_s=0.25, jitter_s=0.1, drop=0.1))
    commits = [0.0, *(step.committed_s for step in found.steps)]
    waited = [max(step.wait_for_device_s, step.wait_for_cloud_s) + step.decide_s for step in found.steps]
    known = [number for number, value in enumerate(waited) if not isnan(value)]
    assert len(known) > 30  # the other drafts came after the verdict, or never
    for number in known:
        assert waited[number] == pytest.approx(commits[number + 1] - commits[number], abs=1e-9)


def test_handovers_of_a_run_are_where_the_aggregator_changes() -> None:
    found = run(4, "random", Link(delay_s=0.1))
    changes = [
        (two.step, two.aggregator)
        for one, two in pairwise(found.steps)
        if one.aggregator is not two.aggregator
    ]
    assert len(changes) > 5
    inner = [(each.step, each.aggregator) for each in found.handovers if each.step > 0]
    assert inner == changes


def test_a_run_that_lost_its_cloud() -> None:
    found = run(2, "device", Link(delay_s=0.05, cut_s=(0.8, 90.0)), on_peer_loss="continue")
    assert found.peer_losses
    alone = [step for step in found.steps if step.is_alone]
    assert alone
    assert all(step.cloud.decode is None and step.verdict is None for step in alone)
    json.dumps(found.to_dict(), allow_nan=False)
    assert replace(found, steps=()).to_dict()["steps"] == []


def test_an_answer_holds_estimates_and_handovers() -> None:
    answer = collect([*by_hand(), DoneEvent(reason="eos", statistics=SessionStatistics())], seed=1)
    assert [each.step for each in answer.estimates] == [0, 2]
    assert answer.placements == (PlacementEvent(step=2, aggregator=Party.CLOUD),)
