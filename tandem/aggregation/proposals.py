"""How proposed tokens are verified where the drafter has no vote: the target is the verifier's distribution alone.

Edge-cloud speculative decoding. A drafter proposes k tokens; the verifier has its own distributions p at their k places
and behind the last. The tokens stand up to the first that does not; one token more follows, a correction or, if all
stand, a bonus. Each rule commits exactly p, whatever was proposed, and is a function of (proposal, p, seed, step).

- `CoupledProposals` (Daliri, Musco and Suresh, arXiv 2408.07978): ids are enough. A draft is the winner of the race of
  the drafter's distribution, the target that of the verifier's, with the same noise. The outcome is the verifier's own
  sample path, which no drafter can change, nor how many tokens it proposes at a time.
- `RejectionProposals` (Leviathan et al., arXiv 2211.17192; SQS, arXiv 2510.09942; QS Eq. 1 and 2, arXiv 2507.00605): a
  token drawn from q stands with probability min(1, p/q). The verifier needs the very distribution that it was drawn
  from, decoded from the same bytes. Tokens, not their distribution, depend on the lengths of proposals; a length must
  not depend on a token that is drawn but not sent.
- `GreedyProposals`: temperature 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tandem.aggregation.coupling import coupled_draw
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.randomness import Purpose, uniform
from tandem.aggregation.rejection import draw, keep_probability, residual
from tandem.errors import ConfigError, ProtocolError, did_you_mean


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of one proposal."""

    num_accepted: int  # proposed tokens that stand, from the first on
    token: int  # the correction behind them, or the bonus if all stand

    def tokens(self, proposed: Sequence[int]) -> tuple[int, ...]:
        """What is committed, num_accepted + 1 tokens."""
        return (*proposed[: self.num_accepted], self.token)


class Proposed(NamedTuple):
    """A token that another party proposes."""

    token: int
    payload: bytes | None  # the encoded distribution that it was drawn from, where that travels


class ProposalRule(ABC):
    """How a drafter draws and a verifier verifies."""

    name: str
    """In configuration and handshake."""
    needs_drafts: ClassVar[bool]
    """Whether the distributions that tokens were drawn from must travel with them."""

    @abstractmethod
    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """A token drawn from the drafter's distribution. step: output position, 0-based, whatever the proposal."""

    @abstractmethod
    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The token at one place, an exact draw from the target p; `proposed` stands if it is that one.

        proposed: None behind the last proposed token. draft: what it was drawn from, where `needs_drafts`. Raises
        ProtocolError.
        """

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        """How many of the tokens stand, and which one follows.

        tokens: [k]. targets: p at each one's place and behind the last, [k + 1]. drafts: [k] where `needs_drafts`.
        step: output position of the first token. Raises ProtocolError.
        """
        if self.needs_drafts and (len(targets) != len(tokens) + 1 or len(drafts) != len(tokens)):
            raise _too_few(tokens, targets, drafts)
        for position, target in enumerate(targets):
            is_bonus = position == len(tokens)
            proposed = None if is_bonus else tokens[position]
            draft = drafts[position] if self.needs_drafts and not is_bonus else None
            token = self.choose(target, proposed, draft, seed=seed, step=step + position)
            if token != proposed:
                return Verified(position, token)
        raise _too_few(tokens, targets)


class CoupledProposals(ProposalRule):
    """Ids alone: a token stands if it is the one that the target's race picks."""

    name = "coupled"
    needs_drafts = False

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The winner of the drafter's race."""
        return coupled_draw(distribution, seed=seed, step=step)

    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The winner of the target's race, whatever was proposed."""
        return coupled_draw(target, seed=seed, step=step)


class GreedyProposals(ProposalRule):
    """Temperature 0: a token stands if it is the target's most probable one, of equals that of the lowest id."""

    needs_drafts = False

    def __init__(self, name: str) -> None:
        """name: the rule that was requested."""
        self.name = name

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The most probable token."""
        return distribution.argmax()

    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The most probable token of the target, whatever was proposed."""
        return target.argmax()


class RejectionProposals(ProposalRule):
    """Acceptance with probability min(1, p/q), correction from norm(max(0, p - q)), bonus from p.

    Draft, acceptance and correction of a step have independent uniform numbers. The number of a step's draft is the
    same again after a rollback; the tokens thrown away with the first draft influenced nothing that was committed.
    """

    name = "rejection"
    needs_drafts = True

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The quantile of the distribution at the step's uniform number."""
        return draw(distribution, uniform(seed, Purpose.DRAFT_DEVICE, step))

    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The proposed token if it is accepted, else one that it never is; without a proposal a draw from p."""
        left: Distribution | None = target
        if proposed is not None and draft is not None:
            if uniform(seed, Purpose.ACCEPTANCE, step) < acceptance(proposed, draft, target):
                return proposed
            left = residual(draft, target)
        if left is None:  # p and q are equal up to rounding, and the token stands
            assert proposed is not None
            return proposed
        return draw(left, uniform(seed, Purpose.CORRECTION, step))


def acceptance(token: int, draft: Distribution, target: Distribution) -> float:
    """min(1, p(x) / q(x)) (QS Eq. 1). ProtocolError if q(x) = 0: x cannot have been drawn from q."""
    if draft.probability(token) <= 0.0:
        raise ProtocolError(
            f"A proposed token must have a probability above zero in its own draft distribution, but token {token} has "
            "none; drop the proposal and ask the drafter again."
        )
    return keep_probability(token, draft, target, 1.0)


PROPOSAL_RULES = (CoupledProposals.name, RejectionProposals.name)
"""Names of the rules; the first is the default."""


def proposal_rule(name: str, temperature: float) -> ProposalRule:
    """The rule of that name; at temperature 0 its greedy form. ConfigError on a bad name."""
    if name not in PROPOSAL_RULES:
        raise ConfigError(f"The proposal rule {name!r} is unknown; {did_you_mean(name, PROPOSAL_RULES)}")
    if temperature == 0.0:
        return GreedyProposals(name)
    return CoupledProposals() if name == CoupledProposals.name else RejectionProposals()


def _too_few(
    tokens: Sequence[int], targets: Sequence[Distribution], drafts: Sequence[Distribution] | None = None
) -> ProtocolError:
    sent = "" if drafts is None else f" and {len(drafts)} draft distributions"
    return ProtocolError(
        f"A proposal of {len(tokens)} tokens needs {len(tokens) + 1} target distributions"
        f"{'' if drafts is None else f' and {len(tokens)} draft distributions'}, got {len(targets)}{sent}; "
        "verify the whole proposal in one pass."
    )
