"""What the hash-driven draws look like: marginals, sequences and acceptance of both draft rules.

Distributions go through the codec. Each chi-square (asymptotic, cells of at least 10) and binomial check has a
false-alarm probability of 1e-9; 41 of them here make 4e-8 in all. Power at 6,000 steps: a law of 12 tokens
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
from tandem.topology import PARTIES, Party

VOCAB, ETA, NUM_STEPS = 12, 0.35, 6000
Check = Callable[..., None]


def sent(seed: int, concentration: float) -> Distribution:
    codec = TopP(0.9)
    return codec.decode(codec.encode(np.random.default_rng(seed).dirichlet(np.full(VOCAB, concentration))))


PAIRS = [(sent(1, 1.0), sent(2, 1.0)), (sent(3, 0.3), sent(4, 3.0)), (sent(5, 20.0), sent(5, 20.0))]
RULES = [rules.Coupled(), rules.Algorithm1()]
by_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
by_pair = pytest.mark.parametrize(("device", "cloud"), PAIRS, ids=["random", "peaked and flat", "equal"])


def decisions(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, *, num: int = NUM_STEPS
) -> list[rules.Verification]:
    """Decisions of `num` steps of one seed: what a session really draws."""
    return [rule.verify(device, cloud, eta_device=ETA, seed=2024, step=step) for step in range(num)]


def counts(tokens: list[int]) -> np.ndarray:
    return np.bincount(tokens, minlength=VOCAB)


def check_marginals(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, chi_square: Check
) -> None:
    made = decisions(rule, device, cloud)
    chi_square(counts([d.device_token for d in made]), device.dense(VOCAB))
    chi_square(counts([d.cloud_token for d in made]), cloud.dense(VOCAB))
    chi_square(counts([d.target for d in made]), target_distribution(device, cloud, ETA).dense(VOCAB))


def check_acceptance(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, binomial: Check
) -> None:
    made = decisions(rule, device, cloud)
    binomial(sum(d.device_accepted for d in made), len(made), made[0].acceptance_device)
    binomial(sum(d.cloud_accepted for d in made), len(made), made[0].acceptance_cloud)


def check_sequence(rule: rules.DraftRule, chi_square: Check) -> None:
    """The joint law of two successive targets, where the second step's distributions depend on the first target."""
    (device, cloud), after = PAIRS[0], PAIRS[1]
    joint = np.zeros((VOCAB, VOCAB))
    for session in range(NUM_STEPS // 2):
        first = rule.verify(device, cloud, eta_device=ETA, seed=5, step=2 * session).target
        distributions = after if first % 2 else after[::-1]
        second = rule.verify(*distributions, eta_device=ETA, seed=5, step=2 * session + 1).target
        joint[first, second] += 1
    p = target_distribution(device, cloud, ETA).dense(VOCAB)
    then = [target_distribution(*distributions, ETA).dense(VOCAB) for distributions in (after[::-1], after)]
    chi_square(joint, np.stack([p[token] * then[token % 2] for token in range(VOCAB)]))


@by_rule
@by_pair
def test_marginals(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, chi_square: Check
) -> None:
    check_marginals(rule, device, cloud, chi_square)


@by_rule
@by_pair
def test_measured_acceptance_matches_the_formula(
    rule: rules.DraftRule, device: Distribution, cloud: Distribution, binomial: Check
) -> None:
    """Eq. 5 and the coupled formula, exactly 1 for coupled equal laws."""
    check_acceptance(rule, device, cloud, binomial)


@by_rule
def test_successive_targets_follow_their_joint_law(rule: rules.DraftRule, chi_square: Check) -> None:
    check_sequence(rule, chi_square)


class Mutant:
    """A rule that bends what it hands to the true rule."""

    def __init__(self, rule: rules.DraftRule, bend: Callable[[int], int]) -> None:
        self.name, self._rule, self._bend = rule.name, rule, bend

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        return self._rule.draft(distribution, seed=seed, step=self._bend(step), party=party)

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> rules.Verification:
        return self._rule.verify(device, cloud, eta_device=eta_device, seed=seed, step=self._bend(step))


@by_rule
def test_mutant_reseeded_at_every_step(rule: rules.DraftRule, chi_square: Check) -> None:
    """Section 12: the random state is reseeded at every forward, every step draws the same numbers."""
    mutant = Mutant(rule, lambda step: 0)
    with pytest.raises(AssertionError):
        check_marginals(mutant, *PAIRS[0], chi_square)
    with pytest.raises(AssertionError):
        check_sequence(mutant, chi_square)


@by_rule
def test_mutant_same_numbers_for_two_steps(rule: rules.DraftRule, chi_square: Check) -> None:
    """Marginals are nearly right, the sequence is not."""
    with pytest.raises(AssertionError):
        check_sequence(Mutant(rule, lambda step: step // 2), chi_square)


def test_mutant_decision_reuses_the_numbers_of_a_draft(
    chi_square: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithm 1 needs independent streams: one stream for all purposes bends the target's law."""
    monkeypatch.setattr(rules, "uniform", lambda seed, purpose, step: uniform(seed, Purpose.DECISION, step))
    with pytest.raises(AssertionError):
        check_marginals(rules.Algorithm1(), *PAIRS[0], chi_square)


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


@by_pair
def test_mutant_uncoupled_drafts(
    device: Distribution, cloud: Distribution, chi_square: Check, binomial: Check
) -> None:
    check_marginals(Uncoupled(), device, cloud, chi_square)
    with pytest.raises(AssertionError):
        check_acceptance(Uncoupled(), device, cloud, binomial)


def test_mutant_formula_of_the_other_rule(binomial: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 5 is not the acceptance rate of coupled drafts."""
    eq5 = rules.speculative_acceptance(*PAIRS[0], ETA)
    monkeypatch.setattr(rules, "coupled_acceptance", lambda draft, target: eq5)
    with pytest.raises(AssertionError):
        check_acceptance(rules.Coupled(), *PAIRS[0], binomial)


def test_coupling_raises_acceptance_on_noisy_copies_of_a_distribution() -> None:
    """Design section 3: 0.60 to 0.90 against 0.33 to 0.63 for top-p distributions that differ by noise."""
    rng, codec = np.random.default_rng(3), TopP(0.8)
    rates: dict[str, list[float]] = {"coupled": [], "algorithm1": []}
    for _ in range(20):
        base = rng.normal(size=200) * 2.0
        distributions = []
        for _party in PARTIES:
            dense = np.exp(base + rng.normal(size=200) * 0.5)
            distributions.append(codec.decode(codec.encode(dense)))
        for rule in RULES:
            rates[rule.name].append(
                rule.verify(*distributions, eta_device=0.5, seed=0, step=0).acceptance_device
            )
    assert all(c > a for c, a in zip(rates["coupled"], rates["algorithm1"], strict=True))
    assert np.mean(rates["coupled"]) > np.mean(rates["algorithm1"]) + 0.15
