"""Algorithm 1 piece by piece. Its distribution as a whole: tests/laws."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import (
    draw,
    keep_probability,
    residual,
    result_distribution,
    target_given_drafts,
)

OWN = Distribution(np.array([0, 1, 2]), np.array([0.5, 0.25, 0.25]))
OTHER = Distribution(np.array([0, 1, 3]), np.array([0.125, 0.375, 0.5]))


def test_keep_probability() -> None:
    assert keep_probability(0, OWN, OTHER, 0.5) == 1 - 0.5 * (1 - 0.25)
    assert keep_probability(1, OWN, OTHER, 0.5) == 1.0
    assert keep_probability(2, OWN, OTHER, 0.25) == 0.75
    assert keep_probability(2, OWN, OTHER, 0.0) == 1.0


def test_residual() -> None:
    assert residual(OWN, OTHER) == Distribution(np.array([1, 3]), np.array([0.2, 0.8]))
    assert residual(OTHER, OWN) == Distribution(np.array([0, 2]), np.array([0.6, 0.4]))


def test_residual_without_mass_keeps_the_draft() -> None:
    """Also when rounding leaves q^s(x) above q^o(x) and nothing above q^s elsewhere."""
    lower = Distribution(np.array([0, 1]), np.array([0.5 - 2**-54, 0.5]))
    upper = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    assert residual(upper, lower) is None
    assert keep_probability(0, upper, lower, 1.0) < 1.0
    assert result_distribution(0, upper, lower, 1.0) == Distribution(np.array([0]), np.ones(1))
    assert residual(OWN, OWN) is None


def test_result_distribution() -> None:
    distribution = result_distribution(2, OWN, OTHER, 0.5)
    np.testing.assert_allclose(distribution.dense(4), [0.0, 0.1, 0.5, 0.4], atol=1e-16)


def test_target_given_drafts_is_half_of_each() -> None:
    distribution = target_given_drafts(1, 3, OWN, OTHER, 0.5)
    expected = 0.5 * result_distribution(1, OWN, OTHER, 0.5).dense(4) + 0.5 * result_distribution(
        3, OTHER, OWN, 0.5
    ).dense(4)
    np.testing.assert_array_equal(distribution.dense(4), expected)


@pytest.mark.parametrize(("u", "token"), [(2**-53, 2), (0.49, 2), (0.51, 7), (1 - 2**-53, 7)])
def test_draw_takes_the_quantile_and_never_a_token_of_probability_zero(u: float, token: int) -> None:
    distribution = Distribution(np.array([1, 2, 5, 7, 9]), np.array([0.0, 0.5, 0.0, 0.5, 0.0]))
    assert draw(distribution, u) == token


def test_draw_stays_inside_when_the_sum_is_rounded() -> None:
    for n in range(1, 400):
        distribution = Distribution(np.arange(n), np.full(n, 1 / n))
        assert draw(distribution, 1 - 2**-53) == n - 1
