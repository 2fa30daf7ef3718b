"""Intervals and tests against published or exact values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem_lab.quality.statistics import mcnemar, perplexity, perplexity_interval, wilson


@pytest.mark.parametrize(
    ("num_right", "count", "expected"),
    [
        (0, 10, (0.0, 0.2775)),
        (10, 10, (0.7225, 1.0)),
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
    ],
)
def test_wilson(num_right: int, count: int, expected: tuple[float, float]) -> None:
    assert wilson(num_right, count) == pytest.approx(expected, abs=1e-4)


def test_mcnemar_is_the_exact_sign_test() -> None:
    first = [True] * 9 + [False] * 1 + [True] * 5
    second = [False] * 9 + [True] * 1 + [True] * 5
    only_first, only_second, p_value = mcnemar(first, second)
    assert (only_first, only_second) == (9, 1)
    assert p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(second, first)[2] == p_value
    assert mcnemar([True], [True]) == (0, 0, 1.0)


def test_perplexity_weighs_tokens_and_not_windows() -> None:
    losses = [np.full(30, math.log(4)), np.full(10, math.log(8))]
    assert perplexity(losses) == pytest.approx(math.exp((30 * math.log(4) + 10 * math.log(8)) / 40))
    assert perplexity([np.full(7, math.log(300))]) == pytest.approx(300)


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    """200 samples of 40 windows; at 95 % coverage fewer than 176 have a chance below 1e-4."""
    rng = np.random.default_rng(5)
    num_covered = 0
    for number in range(200):
        losses = [rng.exponential(2.0, 16) + rng.normal(0, 0.5) for _ in range(40)]
        low, high = perplexity_interval(losses, seed=number)
        num_covered += low <= math.exp(2.0) <= high
    assert num_covered >= 176
