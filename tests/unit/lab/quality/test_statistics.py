"""Intervals and tests against published or exact values."""

from __future__ import annotations

import pytest

from tandem_lab.quality.statistics import mcnemar, wilson


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
