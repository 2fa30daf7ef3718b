"""The draft-free loop is an exact draw from the mixture, and agrees with the rule that live sessions use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import draft_rule, draw_owner, shares
from tandem.modes import reference, reference_shaping
from tandem.modes.reference_shaping import Forecast, Voter

VOCAB = 12


def voter(seed: int, log_weight: float = 0.0) -> Voter:
    def vote(tokens: Sequence[int]) -> Forecast:
        rng = np.random.default_rng([seed, *tokens])
        p = rng.dirichlet(np.full(VOCAB, 0.5))
        return Forecast([float(mass) for mass in p / p.sum()], log_weight)

    return vote


def has(length: int) -> reference.IsComplete:
    return lambda tokens: len(tokens) >= length


def sparse(vote: Forecast) -> Distribution:
    return Distribution(np.arange(VOCAB), np.array(vote.probabilities))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_dual_agrees_with_the_draft_rule_to_the_token(temperature: float) -> None:
    device, cloud = voter(1, 0.3), voter(2, -0.2)
    rule = draft_rule("coupled", temperature)
    for seed in range(30):
        tokens = reference.dual(device, cloud, has(12), seed if temperature else None)
        for step, token in enumerate(tokens):
            decision = rule.verify(
                sparse(device(tokens[:step])),
                sparse(cloud(tokens[:step])),
                eta_device=shares(0.3, -0.2)[0],
                seed=seed,
                step=step,
            )
            assert decision.target == token


def test_the_lottery_agrees_with_the_rule_to_the_owner() -> None:
    """Also where shares have no sum of 1, and where only the first or the last has any."""
    rng = np.random.default_rng(3)
    for seed in range(300):
        size = int(rng.integers(1, 6))
        weights = rng.dirichlet(np.full(size, 0.4)) * rng.choice([1.0, 1.0, 1e-3])
        for given in (weights.tolist(), [1.0, *[0.0] * size], [*[0.0] * size, 1.0]):
            assert reference.owner(given, seed, seed % 7) == draw_owner(given, seed=seed, step=seed % 7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_federated_by_documents_is_the_mixture_by_their_shares(temperature: float) -> None:
    log_weights = [0.3, -0.2, 1.0]
    workers = [voter(number, weight) for number, weight in enumerate(log_weights)]
    for seed in range(10):
        drawn = seed if temperature else None
        by_documents = reference.federated(workers, None, has(10), drawn)
        assert by_documents == reference.federated(workers, shares(*log_weights), has(10), drawn)
    two = workers[:2]
    assert reference.federated(two, None, has(10), 1) == reference.dual(*two, has(10), 1)


@pytest.mark.parametrize("by_lottery", [False, True])
def test_a_token_is_drawn_from_the_mixture(by_lottery: bool) -> None:
    """Frequencies of 4,000 draws lie within 5 standard deviations of each probability: a false alarm in 10^5."""
    workers, weights, n = [voter(1), voter(2), voter(3)], [0.5, 0.3, 0.2], 4000
    target = reference_shaping.mix([worker([]) for worker in workers], weights)
    counts = np.bincount(
        [reference.federated(workers, weights, has(1), seed, None, by_lottery)[0] for seed in range(n)],
        minlength=VOCAB,
    )
    for token, p in enumerate(target):
        assert abs(counts[token] / n - p) <= 5 * (p * (1 - p) / n) ** 0.5 + 1e-12


def test_ties_go_to_the_lowest_id() -> None:
    assert reference.greedy([0.2, 0.4, 0.4]) == 1


def test_it_is_one_page() -> None:
    assert len(Path(reference.__file__).read_text("utf-8").splitlines()) <= 130
