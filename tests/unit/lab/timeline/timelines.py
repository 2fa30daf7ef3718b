"""Events to make timelines of: a few by hand, and whole runs under a virtual clock."""

from __future__ import annotations

import random
from math import nan
from typing import Any

from tandem.events import EstimateEvent, Event, PeerEvent, PlacementEvent, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.virtual import VirtualRun
from tandem_lab.timeline.intervals import Timeline, timeline
from tests.unit.lab.simulation.world import CODEC, World, make_spec


def token(step: int, device_s: float, cloud_s: float, committed_s: float, **changes: Any) -> TokenEvent:
    values: dict[str, Any] = {
        "token": 100 + step,
        "text": f" t{step}",
        "device_accepted": True,
        "cloud_accepted": True,
        "aggregator": Party.DEVICE,
        "device_decode_s": 0.1,
        "cloud_decode_s": 0.05,
        "device_acceptance": 0.6,
        "cloud_acceptance": 0.7,
        "rtt_s": 0.2,
    }
    times = {"device_arrived_s": device_s, "cloud_arrived_s": cloud_s, "committed_s": committed_s}
    return TokenEvent(step=step, **values | times | changes)


def estimate(step: int, delta_z_s: float) -> EstimateEvent:
    return EstimateEvent(
        step=step,
        aggregator=Party.DEVICE,
        chosen=Party.DEVICE,
        delta_z_s=delta_z_s,
        device_decode_s=0.1,
        cloud_decode_s=0.05,
        device_acceptance=0.6,
        cloud_acceptance=0.7,
        rtt_s=0.25,
        rtt_average_s=0.25,
        bytes_per_s=nan,
        assumed=("The round trip was not measured.",),
    )


def by_hand() -> list[Event]:
    """Round trip 0.2 s, drafts take 0.1 and 0.05 s; handed over after step 1, the cloud lost after step 2."""
    return [
        token(0, 0.30, 0.50, 0.51),
        estimate(0, -0.01),
        token(1, 0.40, 0.55, 0.56, device_accepted=False),
        PlacementEvent(step=2, aggregator=Party.CLOUD),
        token(
            2,
            0.70,
            0.62,
            0.95,
            device_accepted=False,
            cloud_accepted=False,
            aggregator=Party.CLOUD,
            device_epoch=1,
        ),
        estimate(2, 0.02),
        PeerEvent(step=3, is_alone=True),
        token(3, 1.50, nan, 1.51, cloud_accepted=False, is_alone=True, cloud_decode_s=nan, device_epoch=2),
    ]


def run(seed: int, placement: str, link: Link, **changes: Any) -> Timeline:
    """48 tokens, drafts that take about 0.1 s at the device and 0.05 s at the cloud."""
    fixed: dict[str, Any] = {
        "draft_rule": "coupled",
        "temperature": 1.0,
        "eos_token_ids": (),
        "max_new_tokens": 48,
    }
    spec = make_spec(seed, placement=placement, **fixed | changes)

    def decode_s(party: Party, rng: random.Random) -> float:
        return rng.uniform(0.09, 0.12) if party is Party.DEVICE else rng.uniform(0.04, 0.06)

    world = {party: World(spec.seed, party) for party in PARTIES}
    virtual = VirtualRun(
        spec,
        world,
        CODEC,
        finished=lambda tokens: "length" if len(tokens) >= 48 else None,
        link=link,
        decode_s=decode_s,
        seed=seed,
    )
    return timeline(virtual.run(300).events, placement)
