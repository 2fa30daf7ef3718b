"""The systems that the benchmark of federated decoding compares, all on the same actors."""

from __future__ import annotations

from tandem.modes.proposing import MAX_PROPOSAL
from tandem_lab.latency.systems import System
from tandem_lab.speculative.systems import FIXED_PROPOSAL, make_options

PAGE = "docs/how-to/federated.md"
"""Where the systems are explained."""


def _proposing(name: str, pacing: str, max_proposal: int, what: str, policy: str = "fixed") -> System:
    options = {**make_options(pacing, max_proposal, mode="federated"), "length_policy": policy}
    return System(name=name, kind="proposals", what=what, dragon="", options=options)


TOKEN_WISE = _proposing(
    "token-wise", "stop_and_wait", 0, "the server asks for the votes on each token: proposals of no token"
)
STOP_AND_WAIT = _proposing(
    "stop_and_wait",
    "stop_and_wait",
    FIXED_PROPOSAL,
    "the server drafts a proposal and waits for the votes on all of it",
)
PIPELINED = _proposing(
    "pipelined",
    "pipelined",
    FIXED_PROPOSAL,
    "the server goes on drafting and sending while votes are under way",
)
ADAPTIVE = (
    _proposing(
        "stop_and_wait/best",
        "stop_and_wait",
        MAX_PROPOSAL,
        "the server waits, and chooses the length of most tokens per second; a round lasts as long as the slowest "
        "worker takes",
        "best",
    ),
    _proposing(
        "pipelined/best",
        "pipelined",
        MAX_PROPOSAL,
        "the server drafts on, and chooses that length",
        "best",
    ),
)
SYSTEMS: tuple[System, ...] = (TOKEN_WISE, STOP_AND_WAIT, PIPELINED, *ADAPTIVE)
"""In the order of tables and legends."""
CALIBRATION: tuple[System, ...] = (TOKEN_WISE, STOP_AND_WAIT)
"""What is measured without a delay, for the predictions."""
