"""Mass spread evenly over the rest of the vocabulary: whatever uses a distribution treats it as plain arrays would.

The oracle writes every formula over dense arrays [vocab]; nothing is sampled. Algorithm 1: tests/laws.
"""

from __future__ import annotations

import numpy as np
import pytest

from tandem.aggregation.coupling import Purpose, coupled_draw, noise, uniform
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import Coupled, draw

VOCAB = 6
ETA = 0.3


def distribution(rng: np.random.Generator, rest: float) -> Distribution:
    """One to five ids of six with the mass that `rest` leaves."""
    num_ids = int(rng.integers(1, VOCAB))
    ids = np.sort(rng.choice(VOCAB, num_ids, replace=False))
    return Distribution(ids, (1.0 - rest) * rng.dirichlet(np.ones(num_ids)), rest, VOCAB)


def pairs(count: int = 40) -> list[tuple[Distribution, Distribution]]:
    """Pairs in which the first, the second or both have a rest."""
    rng = np.random.default_rng(5)
    rests = [(0.3, 0.0), (0.0, 0.4), (0.2, 0.7)]
    return [(distribution(rng, one), distribution(rng, other)) for one, other in rests for _ in range(count)]


def test_its_probabilities_are_those_of_the_dense_form() -> None:
    q = Distribution(np.array([1, 4]), np.array([0.5, 0.2]), rest=0.3, vocab_size=5)
    dense = [0.1, 0.5, 0.1, 0.1, 0.2]
    assert q.dense(5) == pytest.approx(dense, abs=1e-15)
    assert q.dense(7) == pytest.approx([*dense, 0, 0], abs=1e-15), "padding is no token of the vocabulary"
    assert [q.probability(token) for token in range(5)] == pytest.approx(dense, abs=1e-15)
    assert q.on(np.array([0, 1, 4])) == pytest.approx([0.1, 0.5, 0.2], abs=1e-15)
    assert q.rest_beyond(3) == pytest.approx(0.2, abs=1e-15)
    assert q.spread().rest == 0.0
    assert q.spread().probabilities.tolist() == q.dense(5).tolist()


@pytest.mark.parametrize(
    ("ids", "probabilities", "rest", "expected"),
    [
        ([1, 3], [0.3, 0.2], 0.5, 1),  # tokens 0 and 2 have 0.25 each
        ([1, 3], [0.1, 0.1], 0.8, 0),  # the rest is likelier
        ([0, 1], [0.25, 0.25], 0.5, 0),  # all equal
        ([1, 2], [0.25, 0.25], 0.5, 0),  # all equal, and the lowest id belongs to the rest
    ],
)
def test_argmax_is_the_lowest_of_the_likeliest(
    ids: list[int], probabilities: list[float], rest: float, expected: int
) -> None:
    q = Distribution(np.array(ids), np.array(probabilities), rest, 4)
    assert q.argmax() == int(np.argmax(q.dense(4))) == expected


def test_draws_run_over_the_whole_vocabulary() -> None:
    """The race and the quantile of a distribution with a rest are those of its dense array, for every step."""
    for step, (own, other) in enumerate(pairs(200)):
        q, r = own.dense(VOCAB), other.dense(VOCAB)
        clocks = noise(7, step, np.arange(VOCAB))
        assert coupled_draw(own, seed=7, step=step) == int(np.argmax(q / clocks))
        u = uniform(7, Purpose.DECISION, step)
        assert draw(own, u) == int(np.searchsorted(np.cumsum(q), u * np.cumsum(q)[-1], side="right"))
        decision = Coupled().verify(own, other, eta_device=ETA, seed=7, step=step)
        assert decision.target == int(np.argmax((ETA * q + (1 - ETA) * r) / clocks))
        assert (decision.device_token, decision.cloud_token) == (
            coupled_draw(own, seed=7, step=step),
            coupled_draw(other, seed=7, step=step),
        )
