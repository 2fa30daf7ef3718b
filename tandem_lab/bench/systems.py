"""The systems of the three suites: what each is called, and what it asks of the parties.

All of them run on the same actors, engine and codec (`tandem_lab.bench.asker` has the few lines of each kind).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem.config.files import PRESETS
from tandem.config.schema import Pacing
from tandem.errors import TandemError, nearest
from tandem.topology import Party
from tandem_lab.baselines.experiments import Treatment

Kind = Literal["alone", "text", "sequences", "together", "proposals"]
"""How an answer comes about: by one side alone; by the device alone with texts of the cloud's documents; by whole
sequences of both; token by token by both; by the cloud, for which the device drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way of answering."""

    name: str
    kind: Kind
    what: str  # in Tandem's words
    dragon: str = ""  # where DRAGON has it; empty: it has not
    options: dict[str, Any] = field(default_factory=dict)  # of `Tandem.stream`
    treatment: Treatment = field(default_factory=Treatment)  # of all sides that answer
    is_dense: bool = False  # sends whole laws, as float16; else encoded ones

    @property
    def is_seed_deterministic(self) -> bool:
        """Whether its tokens must be those of the synchronous run: drafts are coupled."""
        return self.kind in ("together", "proposals") and self.options["draft_rule"] == "coupled"

    @property
    def is_speculative(self) -> bool:
        """Whether a side may draft what is thrown away."""
        return self.kind == "together" and self.options["max_window"] > 1

    @property
    def calls_cloud(self) -> bool:
        """Whether asking calls the cloud's actors: for texts, whole sequences or the cloud's own answer."""
        return self.kind in ("text", "sequences") or self.options.get("only") is Party.CLOUD

    @property
    def is_stochastic_only(self) -> bool:
        """Whether temperature 0 says nothing new of it: only above do Algorithm 1, rejection and the lottery draw."""
        return self.options.get("draft_rule") in ("algorithm1", "rejection", "lottery")


def _together(placement: str, draft_rule: str = "coupled", *, max_window: int = 16) -> dict[str, Any]:
    return {"placement": placement, "draft_rule": draft_rule, "max_window": max_window}


def _tandem(placement: str, what: str, dragon: str, draft_rule: str = "coupled") -> System:
    suffix = "" if draft_rule == "coupled" else f"/{draft_rule}"
    is_random = placement == "random"
    return System(
        name=f"Tandem/{placement}{suffix}",
        kind="together",
        what=what,
        dragon=dragon,
        options=_together("greedy" if is_random else placement, draft_rule),
        treatment=Treatment(random_placement=is_random),
    )


DUAL: tuple[System, ...] = (
    System(
        name="CRCG/device",
        kind="alone",
        what="the device answers by itself, its documents joined in one row",
        dragon="7.2, CRCG",
        options={"only": Party.DEVICE},
        treatment=Treatment(concat_documents=True),
    ),
    System(
        name="CRCG/cloud",
        kind="alone",
        what="the cloud answers by itself, its documents joined in one row; timed at the cloud",
        dragon="7.2, CRCG",
        options={"only": Party.CLOUD},
        treatment=Treatment(concat_documents=True),
    ),
    System(
        name="DRCG/Text",
        kind="text",
        what="the cloud's texts cross, then the device answers from both sides' documents in one row",
        dragon="7.2, DRCG/Text",
        options={"only": Party.DEVICE},
        treatment=Treatment(concat_documents=True),
    ),
    System(
        name="DRDG/TW",
        kind="together",
        what="no draft before the previous token is committed; the device aggregates",
        dragon="7.2, DRDG/TW",
        options=_together("device", max_window=1),
    ),
    System(
        name="DRDG/SW-dense",
        kind="sequences",
        treatment=Treatment(keeps_distributions=True),
        what="both sides write whole answers; the cloud's crosses once with dense laws, the device takes the likelier",
        dragon="7.2, DRDG/SW",
        is_dense=True,
    ),
    System(
        name="DRDG/SW",
        kind="sequences",
        treatment=Treatment(keeps_distributions=True),
        what="the same with Tandem's encoded laws",
        dragon="7.2, DRDG/SW",
    ),
    _tandem("mirror", "both sides draft ahead and aggregate; no verdict crosses", ""),
    _tandem("device", "both sides draft ahead, the device aggregates", "5, Device"),
    _tandem("cloud", "both sides draft ahead, the cloud aggregates", "5, Cloud"),
    _tandem("greedy", "both sides draft ahead, the aggregator moves where a token costs less", "5, DRAGON"),
    _tandem("random", "both sides draft ahead, each step's aggregator is drawn", "7.4, Random"),
    _tandem("device", "Tandem/device with independent drafts", "4.2, 5, Device", "algorithm1"),
    _tandem("cloud", "Tandem/cloud with independent drafts", "4.2, 5, Cloud", "algorithm1"),
    _tandem(
        "greedy", "Tandem/greedy with independent drafts: the paper's own system", "DRAGON", "algorithm1"
    ),
    _tandem("mirror", "Tandem/mirror where a token is the draft of one side", "", "lottery"),
    _tandem("device", "Tandem/device where a token is the draft of one side", "", "lottery"),
)
"""DRAGON 7.2's systems and Tandem's own, in the order of tables and legends."""

BY_NAME = {system.name: system for system in DUAL}
DEVICE_ONLY, CLOUD_ONLY = BY_NAME["CRCG/device"], BY_NAME["CRCG/cloud"]
TOKEN_WISE, MIRROR = BY_NAME["DRDG/TW"], BY_NAME["Tandem/mirror"]

# ---- Drafters without a vote: modes speculative and federated ---------------------------------------------------


FIXED_PROPOSAL = 4
"""How long proposals are."""


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


def _proposing(
    name: str, what: str, pacing: str, max_proposal: int = FIXED_PROPOSAL, **others: str
) -> System:
    return System(
        name=name, kind="proposals", what=what, options=make_options(pacing, max_proposal, **others)
    )


PACINGS: dict[Pacing, str] = {
    "stop_and_wait": "the device drafts a proposal, sends it and waits for the verdict",
    "pipelined": "the device goes on drafting and sending while verdicts are under way",
    "cloud_goes_on": "and the cloud commits tokens of its own whenever no proposal continues the answer",
}
DEVICE = System(
    name="device",
    kind="alone",
    what="the device answers by itself, with the model that drafts",
    options={"mode": "speculative", "only": Party.DEVICE},
)
ASKED = _proposing("asked", "the cloud is asked for each token: proposals of no token", "stop_and_wait", 0)
STREAMED = _proposing("streamed", "the cloud streams its answer, nobody drafts", "cloud_goes_on", 0)
SPECULATIVE: tuple[System, ...] = (
    DEVICE,
    ASKED,
    STREAMED,
    *(_proposing(pacing, PACINGS[pacing], pacing) for pacing in PACINGS),
    *(
        _proposing(
            f"{pacing}/rejection", f"{pacing} with the rejection rule, distributions by the codec of the settings",
            pacing, draft_rule="rejection",
        )
        for pacing in PACINGS
    ),
    *(
        System(
            name=f"preset/{name}",
            kind="proposals",
            what=f"the rule, lengths and pacing of preset {name}, distributions by the codec of the settings",
            options={"length_policy": "fixed", **PRESETS[name]["decoding"]},
        )
        for name in ("sqs", "qs")
    ),
)  # fmt: skip
"""In the order of tables and legends."""

FEDERATED: tuple[System, ...] = (
    _proposing(
        "token-wise", "the server asks for the votes on each token: proposals of no token", "stop_and_wait", 0,
        mode="federated",
    ),
    _proposing(
        "stop_and_wait", "the server drafts a proposal and waits for the votes on all of it", "stop_and_wait",
        mode="federated",
    ),
    _proposing(
        "pipelined", "the server goes on drafting and sending while votes are under way", "pipelined", mode="federated"
    ),
)  # fmt: skip
"""In the order of tables and legends."""


def select_systems(names: Sequence[str], systems: Sequence[System], page: str) -> tuple[System, ...]:
    """Those of `systems` with these names, in their order. page: where they are explained.

    Raises TandemError for an unknown one.
    """
    known = [system.name for system in systems]
    for name in names:
        if name not in known:
            raise TandemError(
                f"A system is one of {len(known)} ({page}), but {name!r} is none; "
                f"the nearest is {nearest(name, known)!r}."
            )
    return tuple(system for system in systems if system.name in names)
