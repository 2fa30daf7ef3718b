"""Ids alone: with coupled noise the committed tokens are the verifier's own, and follow its distribution exactly.

Marginals by quadrature over the noise, to 1e-11; answers against the loop without drafts, token for token; nothing
there has a false alarm. Acceptance against its formula and known biases by draws, at 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tandem.aggregation import coupling
from tandem.aggregation import rules as proposals
from tandem.aggregation.coupling import Purpose, coupled_draw, exponentials
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import GreedyRule, coupled_acceptance, proposal_rule
from tandem.errors import ConfigError
from tests.distributions import from_dense
from tests.laws.proposals import CoupledVerifier, Verified, Verifier, verify
from tests.laws.test_law_coupled import probability

VOCAB = 5
Draw = Callable[..., int]


def model(tokens: Sequence[int], side: int) -> Distribution:
    """A scripted model: similar distributions on both sides after the last two tokens."""
    common = np.random.default_rng([*tokens[-2:], 3]).dirichlet(np.full(VOCAB, 0.6))
    own = np.random.default_rng([*tokens[-2:], side, 4]).dirichlet(np.full(VOCAB, 0.6))
    return from_dense(0.7 * common + 0.3 * own)


def alone(seed: int, num_tokens: int) -> list[int]:
    """The verifier without a drafter: the page that everything else must agree with."""
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens.append(coupled_draw(model(tokens, 1), seed=seed, step=len(tokens)))
    return tokens


def together(rule: Verifier, seed: int, num_tokens: int, length: int, *, is_garbage: bool) -> list[int]:
    """Proposals of one length, drafted by a similar model or at random."""
    rng, tokens = np.random.default_rng(seed), list[int]()
    while len(tokens) < num_tokens:
        line = list(tokens)
        for _ in range(length):
            drafted = rule.draft(model(line, 0), seed=seed, step=len(line))
            line.append(int(rng.integers(VOCAB)) if is_garbage else drafted)
        proposed = line[len(tokens) :]
        targets = [model(line[:end], 1) for end in range(len(tokens), len(line) + 1)]
        tokens += rule.verify(proposed, targets, seed=seed, step=len(tokens)).tokens(proposed)
    return tokens[:num_tokens]


def check_answers(rule: Verifier, num_seeds: int) -> None:
    for seed in range(num_seeds):
        wanted = alone(seed, 16)
        for length in (0, 1, 2, 3, 5, 8):
            for is_garbage in (False, True):
                assert together(rule, seed, 16, length, is_garbage=is_garbage) == wanted


def test_answers_are_those_of_the_verifier_alone() -> None:
    check_answers(CoupledVerifier(), 25)


class Mutant(CoupledVerifier):
    """The rule with a bent step."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution] = (),
        *,
        seed: int,
        step: int,
    ) -> Verified:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                proposals, "coupled_draw", lambda target, seed, step: self.draw(target, seed, step, first)
            )
            first = step
            return super().verify(tokens, targets, drafts, seed=seed, step=step)


MUTANTS: dict[str, Draw] = {
    "noise by the position in the proposal": lambda target, seed, step, first: coupled_draw(
        target, seed=seed, step=step - first
    ),
    "the same noise for two steps": lambda target, seed, step, first: coupled_draw(
        target, seed=seed, step=step // 2 * 2
    ),
    "the party mixed into the key": lambda target, seed, step, first: coupled_draw(
        target, seed=seed + 1, step=step
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_give_other_answers(name: str) -> None:
    with pytest.raises(AssertionError):
        check_answers(Mutant(MUTANTS[name]), 3)


def committed_marginal() -> float:
    """P(token 0 is committed), over the noise of two tokens, for a draft raced from q."""
    q, p = from_dense(np.array([0.25, 0.0, 0.75])), from_dense(np.array([0.6, 0.0, 0.4]))
    clocks, rule = np.empty(2), CoupledVerifier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coupling, "noise", lambda seed, step, ids: clocks)

        def wins(first: float, second: float) -> bool:
            clocks[:] = first, second
            draft = rule.draft(q, seed=0, step=0)
            verified = rule.verify([draft], [p, p], seed=0, step=0)
            return verified.tokens([draft])[0] == 0

        return probability(wins)


def test_the_committed_token_follows_the_target() -> None:
    assert committed_marginal() == pytest.approx(0.6, abs=1e-11)


def test_acceptance_is_that_of_the_formula(binomial: Callable[..., None]) -> None:
    q, p = model([1], 0), model([1], 1)
    rule, num_steps = CoupledVerifier(), 4000
    accepted = 0
    for step in range(num_steps):
        draft = rule.draft(q, seed=9, step=step)
        accepted += rule.verify([draft], [p, p], seed=9, step=step).num_accepted
    binomial(accepted, num_steps, coupled_acceptance(q, p))
    steps = range(num_steps)  # noise of its own for each side agrees far less often
    other = sum(coupled_draw(q, seed=9, step=s) == coupled_draw(p, seed=10, step=s) for s in steps)
    with pytest.raises(AssertionError):
        binomial(other, num_steps, coupled_acceptance(q, p))


def test_fresh_noise_for_the_correction_is_biased(chi_square: Callable[..., None]) -> None:
    """Known: [.411, .342, .248] instead of p."""
    q, p, num_draws = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.3, 0.4]), 100_000
    ids = np.arange(3 * num_draws)
    clocks, fresh = (exponentials(seed, Purpose.COUPLED, 0, ids).reshape(-1, 3) for seed in (1, 2))
    draft, target = np.argmax(q / clocks, axis=1), np.argmax(p / clocks, axis=1)
    chi_square(np.bincount(target, minlength=3), p)
    wrong = np.bincount(np.where(draft == target, draft, np.argmax(p / fresh, axis=1)), minlength=3)
    assert wrong / num_draws == pytest.approx([0.411, 0.342, 0.248], abs=0.008)
    with pytest.raises(AssertionError):
        chi_square(wrong, p)


# ---- temperature 0, names, errors ----------------------------------------------------------------------------


def test_at_temperature_zero_ties_go_to_the_lowest_id() -> None:
    tied = from_dense(np.array([0.2, 0.4, 0.4]))
    for name in proposals.PROPOSAL_RULES:
        rule = proposal_rule(name, 0.0)
        assert isinstance(rule, GreedyRule)
        assert rule.name == name
        assert rule.draft(tied, seed=1, step=0) == 1
        assert verify(rule, [1, 2], [tied] * 3, seed=1, step=0) == Verified(1, 1)
        assert verify(rule, [1, 1], [tied] * 3, seed=1, step=0).tokens([1, 1]) == (1, 1, 1)


def test_rules_by_name() -> None:
    assert [proposal_rule(name, 1.0).needs_drafts for name in proposals.PROPOSAL_RULES] == [False, True]
    with pytest.raises(
        ConfigError, match=r"^The proposal rule 'couplde' is unknown; did you mean coupled\?$"
    ):
        proposal_rule("couplde", 1.0)
