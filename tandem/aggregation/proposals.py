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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.aggregation.coupling import coupled_draw
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.randomness import Purpose, uniform
from tandem.aggregation.rejection import draw, keep_probability, residual
from tandem.errors import ConfigError, ProtocolError
from tandem.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of one proposal."""

    num_accepted: int  # proposed tokens that stand, from the first on
    token: int  # the correction behind them, or the bonus if all stand

    def tokens(self, proposed: Sequence[int]) -> tuple[int, ...]:
        """What is committed, num_accepted + 1 tokens."""
        return (*proposed[: self.num_accepted], self.token)


class ProposalRule(Protocol):
    """How a drafter draws and a verifier verifies."""

    @property
    def name(self) -> str:
        """The rule's name in configuration and handshake."""

    @property
    def needs_drafts(self) -> bool:
        """Whether the distributions that tokens were drawn from must travel with them."""

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """A token drawn from the drafter's distribution. step: output position, 0-based, whatever the proposal."""

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        """How many of the tokens [k] stand, and which one follows.

        targets: p at each token's place and behind the last, [k + 1]. drafts: what the tokens were drawn from, [k],
        where `needs_drafts`. step: output position of the first token. Raises ProtocolError.
        """


class CoupledProposals:
    """Ids alone: a token stands if it is the one that the target's race picks."""

    name = "coupled"
    needs_drafts = False

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The winner of the drafter's race."""
        return coupled_draw(distribution, seed=seed, step=step)

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        """Compares with the winners of the target's races."""
        return _compare(
            tokens,
            targets,
            lambda position, target: coupled_draw(target, seed=seed, step=step + position),
        )


class GreedyProposals:
    """Temperature 0: a token stands if it is the target's most probable one, of equals that of the lowest id."""

    needs_drafts = False

    def __init__(self, name: str) -> None:
        """name: the rule that was requested."""
        self.name = name

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The most probable token."""
        return distribution.argmax()

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        """Compares with the most probable tokens."""
        return _compare(tokens, targets, lambda _, target: target.argmax())


class RejectionProposals:
    """Acceptance with probability min(1, p/q), correction from norm(max(0, p - q)), bonus from p.

    Draft, acceptance and correction of a step have independent uniform numbers. The number of a step's draft is the
    same again after a rollback; the tokens thrown away with the first draft influenced nothing that was committed.
    """

    name = "rejection"
    needs_drafts = True

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The quantile of the distribution at the step's uniform number."""
        return draw(distribution, uniform(seed, Purpose.DRAFT_DEVICE, step))

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        """Accepts one by one; the first that fails is replaced."""
        if len(targets) != len(tokens) + 1 or len(drafts) != len(tokens):
            raise _too_few(tokens, targets, drafts)
        for position, (token, draft, target) in enumerate(zip(tokens, drafts, targets, strict=False)):
            at = step + position
            if uniform(seed, Purpose.ACCEPTANCE, at) >= acceptance(token, draft, target):
                rest = residual(draft, target)  # None: equal up to rounding, and the token stands
                if rest is not None:
                    return Verified(position, draw(rest, uniform(seed, Purpose.CORRECTION, at)))
        bonus = uniform(seed, Purpose.CORRECTION, step + len(tokens))
        return Verified(len(tokens), draw(targets[-1], bonus))


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


def _compare(
    tokens: Sequence[int], targets: Sequence[Distribution], choose: Callable[[int, Distribution], int]
) -> Verified:
    """Tokens stand as long as they are those that the targets give. choose: the token of the target at a place."""
    for position, target in enumerate(targets):
        token = choose(position, target)
        if position == len(tokens) or token != tokens[position]:
            return Verified(position, token)
    raise _too_few(tokens, targets)


def _too_few(
    tokens: Sequence[int], targets: Sequence[Distribution], drafts: Sequence[Distribution] | None = None
) -> ProtocolError:
    sent = "" if drafts is None else f" and {len(drafts)} draft distributions"
    return ProtocolError(
        f"A proposal of {len(tokens)} tokens needs {len(tokens) + 1} target distributions"
        f"{'' if drafts is None else f' and {len(tokens)} draft distributions'}, got {len(targets)}{sent}; "
        "verify the whole proposal in one pass."
    )
