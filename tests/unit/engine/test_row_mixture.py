"""The party's distribution and row weights against slow oracles in exact or plain arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tandem.engine.drafter import mix_rows, weigh_rows
from tandem.errors import GenerationError


def slow_law(logits: np.ndarray, log_weights: list[float], temperature: float) -> list[float]:
    """Oracle: Eq. (1) and (2) by the book, one number at a time."""
    shares = [math.exp(weight) for weight in log_weights]
    distribution = [0.0] * logits.shape[1]
    for share, row in zip(shares, logits, strict=True):
        masses = [math.exp(float(value) / temperature) for value in row]
        for token, mass in enumerate(masses):
            distribution[token] += share / sum(shares) * mass / sum(masses)
    return distribution


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_eq1_eq2_party_law(temperature: float) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(4, 31)).astype(np.float32) * 3
    weights = [0.1, -2.0, 3.0, 1.0]
    distribution = mix_rows(torch.tensor(logits), weights, temperature)
    assert distribution.dtype == np.float64
    np.testing.assert_allclose(distribution, slow_law(logits, weights, temperature), rtol=2e-5)
    assert abs(distribution.sum() - 1) < 1e-12


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_bits_are_those_of_one_operation_after_the_other(rows: int, temperature: float) -> None:
    """Weighted rows are added in float64 in their order, then divided by their sum: the definition of a vote's bits."""
    logits = 5.0 * torch.randn(rows, 4_000, generator=torch.Generator().manual_seed(rows))
    weights = [0.3 * row for row in range(rows)]
    shifted = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    expected = np.zeros(4_000)
    for weight, row in zip(weigh_rows(weights), torch.softmax(shifted, dim=-1).numpy(), strict=True):
        expected += weight * row.astype(np.float64)
    assert mix_rows(logits, weights, temperature).tobytes() == (expected / expected.sum()).tobytes()


def test_temperature_zero_is_the_law_at_one() -> None:
    logits = torch.randn(3, 17, generator=torch.Generator().manual_seed(1))
    weights = [0.0, 1.0, 2.0]
    assert np.array_equal(mix_rows(logits, weights, 0), mix_rows(logits, weights, 1.0))


def test_extreme_values_stay_finite() -> None:
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4], [float("-inf"), 0.0, 0.0]])
    for temperature in (1e-30, 1.0, 1e6):
        distribution = mix_rows(logits, [1000.0, -1000.0], temperature)
        assert np.isfinite(distribution).all()
        assert abs(distribution.sum() - 1) < 1e-12
    assert mix_rows(logits, [1000.0, -1000.0], 1e-30)[0] == 1.0


def test_bare_row_has_no_weight_and_still_a_law() -> None:
    logits = torch.tensor([[0.0, 1.0]])
    np.testing.assert_allclose(
        mix_rows(logits, [-math.inf], 1.0), slow_law(logits.numpy(), [0.0], 1.0), rtol=1e-6
    )


def test_half_precision_logits() -> None:
    logits = torch.randn(2, 9).bfloat16()
    np.testing.assert_allclose(
        mix_rows(logits, [0.0, 0.0], 1.0), slow_law(logits.float().numpy(), [0.0, 0.0], 1.0), rtol=2e-5
    )


def test_weigh_rows() -> None:
    np.testing.assert_allclose(weigh_rows([0.0, math.log(3)]), [0.25, 0.75])
    assert weigh_rows([-math.inf, 5.0]).tolist() == [0.0, 1.0]
    assert weigh_rows([-math.inf, -math.inf]).tolist() == [0.5, 0.5]


def test_wrong_arguments_are_one_sentence() -> None:
    logits = torch.zeros(2, 3)
    with pytest.raises(GenerationError, match="is -1; set it to a number of at least 0"):
        mix_rows(logits, [0.0, 0.0], -1)
    with pytest.raises(GenerationError, match="is nan; set it to a number of at least 0"):
        mix_rows(logits, [0.0, 0.0], math.nan)
    with pytest.raises(GenerationError, match="2 rows and 1 weights"):
        mix_rows(logits, [0.0], 1.0)
    with pytest.raises(GenerationError, match=r"they are \[nan, 1.0\]; check the scoring model"):
        weigh_rows([math.nan, 1.0])
