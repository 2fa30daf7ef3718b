"""How tokens are drafted and decided: settings, which are options of a query too."""

from __future__ import annotations

from typing import Literal, TypedDict

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from tandem.errors import ConfigError
from tandem.topology import SERVER
from tandem.validation import STRICT, Extension, Settings

DraftRuleName = Literal["coupled", "algorithm1", "rejection"]
ModeName = Literal["dual", "speculative", "federated"]
Pacing = Literal["stop_and_wait", "pipelined", "cloud_goes_on"]
LengthPolicyName = Literal["fixed", "best", "last_accepted", "double_dqn"]
Placement = Literal["device", "cloud", "greedy", "mirror"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DecodingConfig(Settings):
    """How tokens are drafted and decided; each setting can be overridden per query."""

    mode: ModeName = Field(
        default="dual",
        description="whose models answer: both (dual), the cloud's (speculative), or those of many workers (federated)",
    )
    draft_rule: DraftRuleName = Field(
        default="coupled",
        description="how drafts are drawn and verified: coupled, algorithm1 (dual) or rejection (speculative)",
    )
    placement: Placement | Extension = Field(
        default="mirror",
        description="who aggregates: one party, both (mirror), whoever makes a token cheaper (greedy), or a policy",
    )
    synchronous: bool = Field(
        default=False, description="no draft before the previous token is committed (the token-wise loop)"
    )
    max_window: int = Field(default=16, ge=1, description="most drafts past the last committed token")
    max_proposal: int = Field(
        default=4,
        ge=0,
        le=16,
        description="speculative, federated: tokens of a proposal, at most; 0: each is asked for, or the cloud streams",
    )
    length_policy: LengthPolicyName | Extension = Field(
        default="fixed",
        description="speculative, federated: proposals of max_proposal tokens (fixed), or as many as pay (best), as "
        "two rules of QS (last_accepted, double_dqn) or a policy say",
    )
    uplink_budget_bits: int = Field(
        default=0,
        ge=0,
        description="speculative: bits of the ids and distributions of a proposal, at most; 0: no limit",
    )
    pacing: Pacing = Field(
        default="cloud_goes_on",
        description="speculative, federated: one proposal at a time, many, or many while the cloud goes on by itself",
    )
    home: str = Field(
        default="",
        description="federated: the worker at which the question is asked and the answer streams; empty: the server",
    )

    @model_validator(mode="after")
    def _check_rule(self) -> DecodingConfig:
        belongs = {"algorithm1": "dual", "rejection": "speculative"}.get(self.draft_rule, self.mode)
        if self.mode != belongs:
            raise ConfigError(
                f'The draft rule "{self.draft_rule}" is for mode "{belongs}", but decoding.mode is "{self.mode}"; '
                'set the rule to "coupled", or change the mode.'
            )
        if self.mode == "dual" and self.placement == "mirror" and self.draft_rule != "coupled":
            raise ConfigError(
                'The placement "mirror" needs coupled drafts, but decoding.draft_rule is '
                f'"{self.draft_rule}"; set it to "coupled", or the placement to "device" or "cloud".'
            )
        if self.pacing == "cloud_goes_on" and self.length_policy in ("last_accepted", "double_dqn"):
            raise ConfigError(
                f'The length policy "{self.length_policy}" always proposes, whatever the cloud does by itself, but '
                'decoding.pacing is "cloud_goes_on"; set it to "stop_and_wait" or "pipelined", or the policy to "best".'
            )
        return self


def placement_of(decoding: DecodingConfig) -> str:
    """Who decides, for display: in mode speculative the cloud does, in mode federated the server."""
    if decoding.mode == "dual":
        return decoding.placement
    return SERVER if decoding.mode == "federated" else "cloud"


class DecodingOptions(TypedDict, total=False):
    """The fields of `DecodingConfig` as options of one query; None: as configured."""

    mode: ModeName | None
    draft_rule: DraftRuleName | None
    placement: Placement | None
    synchronous: bool | None
    max_window: int | None
    max_proposal: int | None
    length_policy: LengthPolicyName | None
    uplink_budget_bits: int | None
    pacing: Pacing | None
    home: str | None
