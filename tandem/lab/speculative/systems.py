"""The systems that the benchmark of speculative decoding compares, all on the same actors."""

from __future__ import annotations

from typing import Any

from tandem.lab.latency.systems import System
from tandem.lab.simulation.pacing import PACINGS
from tandem.topology import Party

MAX_PROPOSAL = 4
"""How long proposals are in every pacing."""
PAGE = "docs/explanation/speculative.md"
"""Where the systems are explained."""


def _options(pacing: str, max_proposal: int, draft_rule: str = "coupled") -> dict[str, Any]:
    return {
        "mode": "speculative",
        "pacing": pacing,
        "max_proposal": max_proposal,
        "draft_rule": draft_rule,
    }


def _proposing(pacing: str, draft_rule: str, what: str) -> System:
    suffix = "" if draft_rule == "coupled" else f"/{draft_rule}"
    options = _options(pacing, MAX_PROPOSAL, draft_rule)
    return System(name=f"{pacing}{suffix}", kind="proposals", what=what, dragon="", options=options)


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
    options=_options("stop_and_wait", 0),
)
STREAMED = System(
    name="streamed",
    kind="proposals",
    what="the cloud streams its answer, nobody drafts",
    dragon="",
    options=_options("cloud_goes_on", 0),
)
COUPLED = tuple(_proposing(pacing, "coupled", WHAT[pacing]) for pacing in PACINGS)
REJECTION = tuple(
    _proposing(pacing, "rejection", f"{pacing} with the rejection rule, distributions by the codec k_sqs")
    for pacing in PACINGS
)
SYSTEMS: tuple[System, ...] = (DEVICE, ASKED, STREAMED, *COUPLED, *REJECTION)
"""In the order of tables and legends."""
