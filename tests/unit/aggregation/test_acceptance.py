"""Acceptance formulas against slow obvious sums and an integral."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import coupled_acceptance, speculative_acceptance, target_distribution
from tests.distributions import from_dense

VOCAB = 8
weights = st.lists(st.integers(0, 9), min_size=VOCAB, max_size=VOCAB).filter(any)
dense_distributions = weights.map(lambda w: np.array(w) / sum(w))


def both_coupled(device: Distribution, cloud: Distribution, eta_device: float) -> tuple[float, float]:
    """Acceptance rates of device and cloud against their mixture."""
    target = target_distribution(device, cloud, eta_device)
    return coupled_acceptance(device, target), coupled_acceptance(cloud, target)


def slow_coupled(q: np.ndarray, p: np.ndarray) -> float:
    alive = [i for i in range(q.size) if q[i] > 0 and p[i] > 0]
    return sum(1 / np.maximum(q / q[i], p / p[i]).sum() for i in alive)


@given(dense_distributions, dense_distributions, st.floats(0, 1))
def test_coupled_formula_equals_the_double_sum(a: np.ndarray, b: np.ndarray, eta_device: float) -> None:
    device, cloud = from_dense(a), from_dense(b)
    assert coupled_acceptance(device, cloud) == pytest.approx(slow_coupled(a, b), abs=1e-12)
    p = target_distribution(device, cloud, eta_device)
    expected = slow_coupled(a, p.dense(VOCAB)), slow_coupled(b, p.dense(VOCAB))
    assert both_coupled(device, cloud, eta_device) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_coupled_formula_equals_the_integral_over_the_clocks(seed: int) -> None:
    """P(i wins both) = integral over E_i = t of exp(-t) prod_j P(E_j > t max(q_j/q_i, p_j/p_i))."""
    rng = np.random.default_rng(seed)
    q, p = rng.dirichlet(np.ones(5), size=2)

    def wins_both(i: int) -> float:
        others = [j for j in range(5) if j != i]
        rate = [max(q[j] / q[i], p[j] / p[i]) for j in others]
        return float(
            integrate.quad(lambda t: np.exp(-t) * np.prod(np.exp(-t * np.array(rate))), 0, np.inf)[0]
        )

    expected = sum(wins_both(i) for i in range(5))
    assert coupled_acceptance(from_dense(q), from_dense(p)) == pytest.approx(expected, abs=1e-8)


@given(dense_distributions, dense_distributions, st.floats(0, 1))
def test_eq5_equals_the_sum_over_the_vocabulary(a: np.ndarray, b: np.ndarray, eta: float) -> None:
    delta = 1 - np.minimum(a, b).sum()
    p = eta * a + (1 - eta) * b
    expected = 0.5 * (1 - (1 - eta) * delta) + 0.5 * (a * p).sum()
    assert speculative_acceptance(from_dense(a), from_dense(b), eta) == pytest.approx(expected, abs=1e-12)


def test_equal_distributions_always_agree_when_coupled_and_half_the_time_when_not() -> None:
    flat = Distribution(np.arange(100), np.full(100, 0.01))
    assert both_coupled(flat, flat, 0.3) == pytest.approx((1.0, 1.0), abs=1e-12)
    assert speculative_acceptance(flat, flat, 0.3) == pytest.approx(0.5 + 0.5 * 0.01, abs=1e-12)


def test_disjoint_distributions() -> None:
    device, cloud = Distribution(np.array([0]), np.ones(1)), Distribution(np.array([1]), np.ones(1))
    assert both_coupled(device, cloud, 0.25) == pytest.approx((0.25, 0.75), abs=1e-12)
    assert both_coupled(device, cloud, 1.0) == (1.0, 0.0)
    assert coupled_acceptance(device, cloud) == 0.0
    assert speculative_acceptance(device, cloud, 0.25) == pytest.approx(0.25, abs=1e-12)


@given(dense_distributions, dense_distributions)
def test_the_coupled_acceptance_lies_between_its_bounds(a: np.ndarray, b: np.ndarray) -> None:
    """(1 - delta) / (1 + delta) <= alpha <= 1 - delta, delta the total variation (Daliri, Musco and Suresh)."""
    delta = float(np.abs(a - b).sum() / 2)
    alpha = coupled_acceptance(from_dense(a), from_dense(b))
    assert (1 - delta) / (1 + delta) - 1e-12 <= alpha <= 1 - delta + 1e-12
