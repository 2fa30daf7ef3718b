"""Weights of rows: the closed form of the recursion, the posterior it is at memory 1, and what cannot matter."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.aggregation.document_weights import (
    MIN_PROBABILITY,
    DocumentWeights,
    Evidence,
    log_evidence,
    log_weight,
)
from tandem.errors import GenerationError

RNG = np.random.default_rng(3)
TOKENS = [log_evidence(row.tolist()) for row in RNG.uniform(0.01, 1.0, size=(12, 3))]
"""What each of 12 tokens says of 3 rows."""


def learn_all(weights: DocumentWeights, tokens: list[Evidence] = TOKENS) -> Evidence:
    evidence = weights.start
    for token in tokens:
        evidence = weights.learn(evidence, token)
    return evidence


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 1.0])
def test_evidence_is_the_sum_of_what_tokens_say_each_older_one_counting_less(memory: float) -> None:
    """e_d(t) = sum over i < t of memory^(t-1-i) log p_d(x_i)."""
    ages = memory ** np.arange(len(TOKENS))[::-1]
    expected = ages @ np.array(TOKENS)
    learned = learn_all(DocumentWeights((0.0, 1.0, -2.0), 1.0, memory))
    np.testing.assert_allclose(learned, expected, rtol=1e-13)


def test_the_log_weight_is_the_prior_and_the_evidence() -> None:
    weights = DocumentWeights((0.5, -1.0), 0.25, 0.5)
    assert weights.start == (0.0, 0.0)
    assert weights.weigh(weights.start) == (0.5, -1.0)
    first = weights.learn(weights.start, (-1.0, -2.0))
    assert first == (-1.0, -2.0)
    second = weights.learn(first, (-4.0, 0.0))
    assert second == (-4.5, -1.0)
    assert weights.weigh(second) == (0.5 - 0.25 * 4.5, -1.0 - 0.25)


def test_no_single_token_rules_a_row_out() -> None:
    assert log_evidence([0.0, MIN_PROBABILITY / 2, MIN_PROBABILITY, 1.0]) == (
        math.log(MIN_PROBABILITY),
        math.log(MIN_PROBABILITY),
        math.log(MIN_PROBABILITY),
        0.0,
    )


def test_log_weight_is_log_sum_exp() -> None:
    assert log_weight([]) == -math.inf
    assert log_weight([0.7]) == 0.7
    assert log_weight([-math.inf]) == -math.inf
    assert log_weight([-math.inf, -math.inf]) == -math.inf
    assert log_weight([-math.inf, 2.0]) == 2.0
    assert log_weight([-2000.0, 5.0]) == 5.0
    assert math.isclose(
        log_weight([1.0, 2.0, -1.0]), math.log(math.e + math.e**2 + 1 / math.e), rel_tol=1e-15
    )
    assert math.isclose(log_weight([1000.0, 1000.0]), 1000 + math.log(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_no_number_below_infinity_is_one_sentence(bad: float) -> None:
    with pytest.raises(
        GenerationError,
        match=rf"^The log weight of a document .*they are \[{bad}, 1.0\]; check the scoring model\.$",
    ):
        log_weight([bad, 1.0])
