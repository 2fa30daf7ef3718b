"""How many tokens a drafter without a vote proposes at a time: always as many, or as many as a policy of its own says.

No length changes an answer, only how long it takes.
"""

from __future__ import annotations

from typing import Protocol

from tandem.config.extensions import Parameters, is_extension
from tandem.scheduler.policies import Loader


class LengthPolicy(Protocol):
    """Chooses the lengths of one query's proposals, in the decoder that drafts them."""

    def choose(self) -> int:
        """Tokens of the next proposals; 0: none. Asked at first, and after each verdict."""

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """A proposal was decided. num_accepted: its tokens before the first rejected one. draft_s: to draft it."""


LENGTH_POLICIES = Loader[LengthPolicy](
    "length policy",
    "decoding.length_policy",
    "scheduler.parameters",
    ("choose", "observe"),
    "the device",
)


def make_length_policy(name: str, max_length: int) -> LengthPolicy | None:
    """A policy for one query; None: the length stays. max_length: tokens of its longest proposal.

    Raises ConfigError for a policy that this process has not loaded.
    """
    return LENGTH_POLICIES.make(name, max_length=max_length) if is_extension(name) else None


def load_length_policy(name: str, parameters: Parameters, where: str) -> None:
    """Load the policy that a party's own settings name; nothing if there is none. As `Loader.load`."""
    LENGTH_POLICIES.load(name, parameters, where, max_length=1)
