"""What the hash-driven draws look like: marginals, sequences and acceptance of both draft rules.

Distributions go through the codec. Each chi-square (asymptotic, cells of at least 10) and binomial check has a
false-alarm probability of 1e-9; 30 of them here make 3e-8 in all. Power at 6,000 steps: a law of 12 tokens
that is off by 0.08 in total variation, or an acceptance rate that is off by 0.06, is rejected with
probability above 0.99; the mutants are off by far more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tandem.aggregation import rules
from tandem.aggregation.coupling import Purpose, uniform
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import target_distribution
from tandem.codecs.top_p import TopP
from tandem.topology import Party

VOCAB, ETA, NUM_STEPS = 12, 0.35, 6000
Check = Callable[..., None]


def sent(seed: int, concentration: float) -> Distribution:
    codec = TopP(0.9)
    return codec.decode(codec.encode(np.random.default_rng(seed).dirichlet(np.full(VOCAB, concentration))))


PAIRS = [(sent(1, 1.0), sent(2, 1.0)), (sent(3, 0.3), sent(4, 3.0))]
"""Of random distributions, and of a peaked and a flat one."""
RULES = [rules.Coupled(), rules.Algorithm1()]
by_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])


def decisions(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, num: int = NUM_STEPS
) -> list[rules.Verification]:
    """Decisions of so many steps of one seed: what a session really draws."""
    return [rule.verify(device, cloud, eta_device=ETA, seed=2024, step=step) for step in range(num)]


def check_marginals(
    made: list[rules.Verification], device: Distribution, cloud: Distribution, chi_square: Check
) -> None:
    target = target_distribution(device, cloud, ETA)
    for name, law in (("device_token", device), ("cloud_token", cloud), ("target", target)):
        tokens = [getattr(decision, name) for decision in made]
        chi_square(np.bincount(tokens, minlength=VOCAB), law.dense(VOCAB))


def check_acceptance(made: list[rules.Verification], binomial: Check) -> None:
    """Eq. 5 and the coupled formula."""
    binomial(sum(decision.device_accepted for decision in made), len(made), made[0].acceptance_device)
    binomial(sum(decision.cloud_accepted for decision in made), len(made), made[0].acceptance_cloud)


def check_sequence(rule: rules.DraftRule, chi_square: Check, num: int = NUM_STEPS // 2) -> None:
    """The joint law of two successive targets, where the second step's distributions depend on the first target."""
    (device, cloud), after = PAIRS[0], PAIRS[1]
    joint = np.zeros((VOCAB, VOCAB))
    for session in range(num):
        first = rule.verify(device, cloud, eta_device=ETA, seed=5, step=2 * session).target
        distributions = after if first % 2 else after[::-1]
        second = rule.verify(*distributions, eta_device=ETA, seed=5, step=2 * session + 1).target
        joint[first, second] += 1
    p = target_distribution(device, cloud, ETA).dense(VOCAB)
    then = [target_distribution(*distributions, ETA).dense(VOCAB) for distributions in (after[::-1], after)]
    chi_square(joint, np.stack([p[token] * then[token % 2] for token in range(VOCAB)]))


@by_rule
@pytest.mark.parametrize(("device", "cloud"), PAIRS)
def test_marginals_and_acceptance_are_those_of_the_formulas(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, chi_square: Check, binomial: Check
) -> None:
    made = decisions(rule, device, cloud)
    check_marginals(made, device, cloud, chi_square)
    check_acceptance(made, binomial)


@by_rule
def test_successive_targets_follow_their_joint_law(rule: rules.DraftRule, chi_square: Check) -> None:
    check_sequence(rule, chi_square)


class Mutant:
    """A rule that bends what it hands to the true rule."""

    def __init__(self, rule: rules.DraftRule, bend: Callable[[int], int]) -> None:
        self._rule, self._bend = rule, bend

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> rules.Verification:
        return self._rule.verify(device, cloud, eta_device=eta_device, seed=seed, step=self._bend(step))


@by_rule
def test_mutant_reseeded_at_every_step(rule: rules.DraftRule, chi_square: Check) -> None:
    """Section 12: the random state is reseeded at every forward, every step draws the same numbers."""
    mutant = Mutant(rule, lambda step: 0)
    with pytest.raises(AssertionError):
        check_marginals(decisions(mutant, *PAIRS[0], num=500), *PAIRS[0], chi_square)
    with pytest.raises(AssertionError):
        check_sequence(mutant, chi_square, num=500)


@by_rule
def test_mutant_same_numbers_for_two_steps(rule: rules.DraftRule, chi_square: Check) -> None:
    """Marginals are nearly right, the sequence is not."""
    with pytest.raises(AssertionError):
        check_sequence(Mutant(rule, lambda step: step // 2), chi_square, num=1500)


def test_mutant_decision_reuses_the_numbers_of_a_draft(
    chi_square: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithm 1 needs independent streams: one stream for all purposes bends the target's law."""
    monkeypatch.setattr(rules, "uniform", lambda seed, purpose, step: uniform(seed, Purpose.DECISION, step))
    with pytest.raises(AssertionError):
        check_marginals(decisions(rules.Algorithm1(), *PAIRS[0]), *PAIRS[0], chi_square)


class Uncoupled(rules.Coupled):
    """Drafts with noise of their own: exact marginals, but they agree far too rarely."""

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> rules.Verification:
        true = super().verify(device, cloud, eta_device=eta_device, seed=seed, step=step)
        return rules.Verification(
            target=true.target,
            device_token=self.draft(device, seed=seed + 1, step=step, party=Party.DEVICE),
            cloud_token=self.draft(cloud, seed=seed + 2, step=step, party=Party.CLOUD),
            acceptance_device=true.acceptance_device,
            acceptance_cloud=true.acceptance_cloud,
        )


def test_mutant_uncoupled_drafts(chi_square: Check, binomial: Check) -> None:
    made = decisions(Uncoupled(), *PAIRS[0])
    check_marginals(made, *PAIRS[0], chi_square)
    with pytest.raises(AssertionError):
        check_acceptance(made, binomial)


def test_mutant_formula_of_the_other_rule(binomial: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 5 is not the acceptance rate of coupled drafts."""
    eq5 = rules.speculative_acceptance(*PAIRS[0], ETA)
    monkeypatch.setattr(rules, "coupled_acceptance", lambda draft, target: eq5)
    with pytest.raises(AssertionError):
        check_acceptance(decisions(rules.Coupled(), *PAIRS[0]), binomial)
