"""Log probabilities of a token and of its alternatives: all of them, in order, of sum 1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution, log_probabilities

TARGET = Distribution(np.array([2, 5, 7, 9]), np.array([0.25, 0.5, 0.25, 0.0]))


def test_the_likeliest_come_first_and_equals_by_their_ids() -> None:
    named = log_probabilities(TARGET, 7, 3)
    assert named.token == math.log(0.25)
    assert named.top == ((5, math.log(0.5)), (2, math.log(0.25)), (7, math.log(0.25)))


def test_excluded_tokens_are_no_alternatives() -> None:
    assert len(log_probabilities(TARGET, 5, 20).top) == 3
    assert log_probabilities(TARGET, 5, 0).top == ()


def test_the_rest_is_spread_over_the_other_tokens() -> None:
    target = Distribution(np.array([1]), np.array([0.4]), rest=0.6, vocab_size=5)
    named = log_probabilities(target, 3, 5)
    assert named.token == pytest.approx(math.log(0.15))
    assert [token for token, _ in named.top] == [1, 0, 2, 3, 4]
    assert math.fsum(math.exp(logprob) for _, logprob in named.top) == pytest.approx(1.0, abs=1e-12)
