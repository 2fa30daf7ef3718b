"""Penalties and biases, against slow oracles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.config.schema import SamplingParams
from tandem.engine.shaping import Shaper
from tandem.modes.reference_shaping import shift

Floats = NDArray[np.float64]


def check_shift(
    shape: Callable[[Floats, Sequence[int]], Floats], sampling: SamplingParams, biases: dict[int, float]
) -> None:
    """Against the definition on the reference page."""
    draw = random.Random(5)
    for size in (1, 2, 9):
        weights = [draw.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(size)]
        weights[0] += 1
        dense = np.array(weights) / sum(weights)
        prefix = [draw.randrange(size) for _ in range(6)]
        expected = shift(
            dense.tolist(), prefix, biases, sampling.presence_penalty, sampling.frequency_penalty,
            sampling.temperature or 1.0,
        )  # fmt: skip
        np.testing.assert_allclose(shape(dense, prefix), expected, rtol=1e-12, atol=1e-300)


SAMPLINGS = [
    SamplingParams(temperature=temperature, presence_penalty=presence, frequency_penalty=frequency)
    for temperature in (0.0, 0.5, 1.0)
    for presence, frequency in ((0.0, 0.0), (2.0, 0.0), (0.0, -1.5), (0.7, 0.3))
]


@pytest.mark.parametrize("biases", [{}, {0: -100.0}, {1: 3.0, 8: -2.0, 500: 100.0}])
def test_logits_are_shifted_as_the_reference_page_says(biases: dict[int, float]) -> None:
    for sampling in SAMPLINGS:
        check_shift(Shaper(sampling, biases).shape, sampling, biases)


class CountsOnce(Shaper):
    """A mutant that takes the frequency penalty once, however often a token came."""

    def shape(self, dense: Floats, prefix: Sequence[int]) -> Floats:
        return super().shape(dense, list(dict.fromkeys(prefix)))


class IgnoresTheTemperature(Shaper):
    """A mutant that shifts probabilities as if they were taken at temperature 1."""

    def __init__(self, sampling: SamplingParams, biases: dict[int, float]) -> None:
        super().__init__(sampling, biases)
        self._temperature = 1.0


@pytest.mark.parametrize("mutant", [CountsOnce, IgnoresTheTemperature])
def test_mutants_are_found(mutant: Any) -> None:
    def check() -> None:
        for sampling in SAMPLINGS:
            check_shift(mutant(sampling, {1: 3.0}).shape, sampling, {1: 3.0})

    with pytest.raises(AssertionError):
        check()


def test_a_tiny_temperature_and_a_great_bias_leave_a_distribution() -> None:
    dense = np.array([0.0, 1e-300, 1.0])
    for temperature in (1e-3, 1e-37, 1e-320):
        shaped = Shaper(SamplingParams(temperature=temperature), {1: 100.0, 0: 100.0}).shape(dense, ())
        assert shaped.tolist() == [0.0, 1.0, 0.0]
