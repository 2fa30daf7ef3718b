"""Moving averages."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from tandem.profiler.estimates import MovingAverage, MovingLine


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


def test_a_line_is_found() -> None:
    line = MovingLine()
    assert isnan(line.intercept)
    for x in (1, 5, 2, 9, 4) * 20:
        line.add(x, 3.0 + 0.5 * x)
    line.add(nan, 7.0)
    assert line.slope == pytest.approx(0.5, rel=0.05)
    assert line.intercept == pytest.approx(3.0, rel=0.05)


def test_a_line_never_falls_nor_begins_below_zero() -> None:
    falling, steep = MovingLine(), MovingLine()
    for x in (1, 5, 2, 9, 4) * 20:
        falling.add(x, 30.0 - x)
        steep.add(x, x - 0.9)
    assert falling.slope == 0.0
    assert steep.intercept == 0.0
