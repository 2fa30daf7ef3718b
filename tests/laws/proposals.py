"""A proposal verified as a whole, token by token: what a voter does with one, in one place for the laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import Coupled, ProposalRule, RejectionProposals


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of one proposal."""

    num_accepted: int  # proposed tokens that stand, from the first on
    token: int  # the correction behind them, or the bonus if all stand

    def tokens(self, proposed: Sequence[int]) -> tuple[int, ...]:
        """What is committed, num_accepted + 1 tokens."""
        return (*proposed[: self.num_accepted], self.token)


def verify(
    rule: ProposalRule,
    tokens: Sequence[int],
    targets: Sequence[Distribution],
    drafts: Sequence[Distribution] = (),
    *,
    seed: int,
    step: int,
) -> Verified:
    """How many of the tokens stand, and which one follows.

    tokens: [k]. targets: p at each one's place and behind the last, [k + 1]. drafts: [k] where `needs_drafts`.
    """
    for position, target in enumerate(targets):
        is_bonus = position == len(tokens)
        proposed = None if is_bonus else tokens[position]
        draft = drafts[position] if rule.needs_drafts and not is_bonus else None
        token = rule.choose(target, proposed, draft, seed=seed, step=step + position)
        if token != proposed:
            return Verified(position, token)
    raise AssertionError("a target behind the last token is missing")


class Verifying:
    """A rule with the loop over a proposal as a method, which mutants replace."""

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        return verify(cast("ProposalRule", self), tokens, targets, drafts, seed=seed, step=step)


class CoupledVerifier(Verifying, Coupled):  # type: ignore[misc]
    """Ids alone."""


class RejectionVerifier(Verifying, RejectionProposals):
    """Ids with the distributions that they were drawn from."""


Verifier = CoupledVerifier | RejectionVerifier
