"""Distributions: what they accept, look up and compare."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution, union


def make(ids: list[int], probabilities: list[float]) -> Distribution:
    return Distribution(np.array(ids), np.array(probabilities))


def test_argmax_ties_go_to_the_lowest_id() -> None:
    assert make([3, 5, 9], [0.4, 0.4, 0.2]).argmax() == 3


def test_probability_inside_and_outside_the_support() -> None:
    distribution = make([3, 5], [0.25, 0.75])
    assert [distribution.probability(token) for token in (0, 3, 4, 5, 6)] == [0.0, 0.25, 0.0, 0.75, 0.0]


def test_dense() -> None:
    dense = np.array([0.0, 0.5, 0.0, 0.25, 0.25])
    distribution = make([1, 3, 4], [0.5, 0.25, 0.25])
    np.testing.assert_array_equal(distribution.dense(5), dense)
    assert hash(distribution) == hash(make([1, 3, 4], [0.5, 0.25, 0.25]))


def test_union_is_ascending_and_without_repeats() -> None:
    assert union(make([1, 4], [0.5, 0.5]), make([0, 4, 7], [0.2, 0.3, 0.5])).tolist() == [0, 1, 4, 7]


def test_arrays_cannot_be_written_through_the_distribution() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make([1], [1.0]).probabilities[0] = 0.5


@pytest.mark.parametrize(
    ("ids", "probabilities"),
    [
        ([], []),
        ([1, 2], [1.0]),
        ([2, 1], [0.5, 0.5]),
        ([1, 1], [0.5, 0.5]),
        ([-1, 1], [0.5, 0.5]),
        ([1, 2], [1.5, -0.5]),
        ([1, 2], [0.5, 0.4]),
        ([1, 2], [0.5, float("nan")]),
    ],
)
def test_what_is_no_distribution_is_refused(ids: list[int], probabilities: list[float]) -> None:
    with pytest.raises(ValueError, match="distribution"):
        Distribution(np.array(ids, dtype=np.int64), np.array(probabilities))
