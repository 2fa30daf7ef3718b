"""The systems that the benchmark of speculative decoding compares, all on the same actors."""

from __future__ import annotations

from typing import Any

from tandem.config.presets import PRESETS
from tandem.modes.proposing import MAX_PROPOSAL
from tandem.topology import Party
from tandem_lab.latency.systems import System
from tandem_lab.simulation.conditions import PACINGS, Pacing

FIXED_PROPOSAL = 4
"""How long proposals are where their length is fixed."""
PAGE = "docs/explanation/speculative.md"
"""Where the systems are explained."""


def make_options(
    pacing: str, max_proposal: int, draft_rule: str = "coupled", mode: str = "speculative"
) -> dict[str, Any]:
    """Options of a query whose drafter has no vote."""
    return {
        "mode": mode,
        "pacing": pacing,
        "max_proposal": max_proposal,
        "draft_rule": draft_rule,
        "length_policy": "fixed",
    }


def _proposing(pacing: str, draft_rule: str, what: str) -> System:
    suffix = "" if draft_rule == "coupled" else f"/{draft_rule}"
    options = make_options(pacing, FIXED_PROPOSAL, draft_rule)
    return System(name=f"{pacing}{suffix}", kind="proposals", what=what, dragon="", options=options)


def _adapting(pacing: Pacing, policy: str, what: str) -> System:
    options = {**make_options(pacing, MAX_PROPOSAL), "length_policy": policy}
    what = f"{WHAT[pacing]}, {what}"
    return System(name=f"{pacing}/{policy}", kind="proposals", what=what, dragon="", options=options)


WHAT = {
    "stop_and_wait": "the device drafts a proposal, sends it and waits for the verdict",
    "pipelined": "the device goes on drafting and sending while verdicts are under way",
    "cloud_goes_on": "and the cloud commits tokens of its own whenever no proposal continues the answer",
}

DEVICE = System(
    name="device",
    kind="alone",
    what="the device answers by itself, with the model that drafts",
    dragon="",
    options={"mode": "speculative", "only": Party.DEVICE},
)
ASKED = System(
    name="asked",
    kind="proposals",
    what="the cloud is asked for each token: proposals of no token",
    dragon="",
    options=make_options("stop_and_wait", 0),
)
STREAMED = System(
    name="streamed",
    kind="proposals",
    what="the cloud streams its answer, nobody drafts",
    dragon="",
    options=make_options("cloud_goes_on", 0),
)
COUPLED = tuple(_proposing(pacing, "coupled", WHAT[pacing]) for pacing in PACINGS)
REJECTION = tuple(
    _proposing(pacing, "rejection", f"{pacing} with the rejection rule, distributions by the codec k_sqs")
    for pacing in PACINGS
)
ADAPTIVE = (
    _adapting("stop_and_wait", "best", "and chooses the length of most tokens per second: preset flexspec"),
    _adapting("pipelined", "best", "and chooses that length while it drafts on"),
    _adapting("cloud_goes_on", "best", "and chooses that length, beside a cloud that goes on"),
)
"""Coupled drafts, whose lengths adapt up to the longest."""
PAPERS = tuple(
    System(
        name=f"preset/{name}",
        kind="proposals",
        what=f"the rule, lengths and pacing of preset {name}, distributions by the codec of the settings",
        dragon="",
        options=dict(PRESETS[name]["decoding"]),
    )
    for name in ("sqs", "qs")
)
SYSTEMS: tuple[System, ...] = (DEVICE, ASKED, STREAMED, *COUPLED, *ADAPTIVE, *REJECTION, *PAPERS)
"""In the order of tables and legends."""
