"""Moving averages."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from tandem.profiler.estimates import MovingAverage


def test_it_starts_with_the_first_value_and_moves_towards_new_ones() -> None:
    average = MovingAverage(share=0.25)
    assert isnan(average.value)
    average.add(4.0)
    assert average.value == 4.0
    average.add(8.0)
    assert average.value == 5.0
    assert average.num_values == 2


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_missing_values_are_ignored(value: float) -> None:
    average = MovingAverage()
    average.add(value)
    assert isnan(average.value)
    average.add(1.0)
    average.add(value)
    assert average.value == 1.0
    assert average.num_values == 1
