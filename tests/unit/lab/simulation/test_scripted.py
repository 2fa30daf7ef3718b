"""A replay commits just the sequence it was given, whoever aggregates and however long frames take."""

from __future__ import annotations

from random import Random

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.events import TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.study import (
    CODEC,
    LAWS,
    Accepted,
    ScriptedModel,
    decode_times,
    draw_acceptance,
    length_rule,
    scripted_spec,
)
from tandem_lab.simulation.virtual import VirtualRun

LINKS = {
    "none": Link(),
    "delay": Link(delay_s=0.2, is_in_order=True),
    "wave": Link(delay_s=0.1, wave=0.2, is_in_order=True),
    "reorder": Link(delay_s=0.02, jitter_s=0.3),
    "loss": Link(delay_s=0.05, drop=0.1, duplicate=0.1),
}


@pytest.mark.parametrize("accepted", LAWS)
def test_four_pairs_of_laws_force_the_four_cases(accepted: Accepted) -> None:
    device, cloud = (CODEC.decode(LAWS[accepted][party]) for party in PARTIES)
    for temperature_rule in ("coupled", "algorithm1"):
        rule = draft_rule(temperature_rule, 0.0)
        found = rule.verify(device, cloud, eta_device=0.5, seed=7, step=3)
        assert (found.device_accepted, found.cloud_accepted) == accepted
        assert (found.acceptance_device, found.acceptance_cloud) == accepted  # 0/1 at temperature 0


def committed(accepted: list[Accepted], placement: str, link: Link, **changes: object) -> list[Accepted]:
    run = VirtualRun(
        scripted_spec(len(accepted), placement=placement, **changes),
        {party: ScriptedModel(party, accepted) for party in PARTIES},
        CODEC,
        finished=length_rule(len(accepted)),
        link=link,
        decode_s=decode_times({Party.DEVICE: 0.06, Party.CLOUD: [0.01, 0.03]}),
    )
    events = run.run(3600.0).events
    return [(e.device_accepted, e.cloud_accepted) for e in events if isinstance(e, TokenEvent)]


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("placement", ["device", "cloud", "greedy", "random", "mirror"])
def test_the_events_show_the_sequence(placement: str, link: Link) -> None:
    accepted = draw_acceptance(30, 0.7, 0.6, Random(3))
    assert set(accepted) == set(LAWS)  # all four cases are in it
    assert committed(accepted, placement, link) == accepted


def test_the_token_wise_loop_shows_it_too() -> None:
    accepted = draw_acceptance(12, 0.5, 0.5, Random(1))
    assert committed(accepted, "device", LINKS["delay"], max_window=1) == accepted


def test_decode_times_come_in_order_and_again() -> None:
    times = decode_times({Party.DEVICE: [0.1, 0.2], Party.CLOUD: 0.3})
    assert [times(Party.DEVICE, Random(0)) for _ in range(5)] == [0.1, 0.2, 0.1, 0.2, 0.1]
    assert [times(Party.CLOUD, Random(0)) for _ in range(2)] == [0.3, 0.3]
