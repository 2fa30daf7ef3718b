"""Sampling: how tokens are drawn from a distribution and when an answer ends; every option with its default, meaning
and range.

The `[sampling]` section of the settings, the options of `Tandem.query` and of the command line, what travels in the
spec of a session, and the documentation all follow from the fields below. Whatever changes a distribution is applied
by `tandem.aggregation.distributions`.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from tandem.config.checks import STRICT, Settings, Texts

GRAMMARS = ("json_schema", "regex", "lark")
"""Kinds of grammar that an answer can follow."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SamplingParams(Settings):
    """How an answer is sampled. Both parties apply it to their own distribution, before it is compressed."""

    temperature: float = Field(
        default=0.0, ge=0, description="divides the logits; 0 takes the most probable token"
    )
    top_k: int = Field(default=0, ge=0, description="keeps the k most probable tokens; 0: all")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="keeps the fewest most probable tokens that have this probability together; 1: all",
    )
    min_p: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="drops tokens below this share of the largest probability; 0: none",
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="is taken from the logits of tokens that the answer has already"
    )
    frequency_penalty: float = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="is taken from a token's logit for each time that the answer has it already",
    )
    max_new_tokens: int = Field(
        default=512,
        ge=1,
        description="longest answer, in tokens; it ends earlier where a model's context does",
    )
    stop: Texts = Field(default=(), description="text that ends an answer, or a list of them")

    def without_end(self) -> SamplingParams:
        """These options without what only ends an answer: equal for two that give the same distributions."""
        return replace(self, max_new_tokens=1, stop=())


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as options of one query; None: as configured."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_new_tokens: int | None
    stop: str | list[str] | tuple[str, ...] | None
