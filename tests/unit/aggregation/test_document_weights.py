"""Anchors, checkpoints and momentum against a slow simulation of a decoder that walks along the prefix; log weights."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.aggregation.document_weights import blend, checkpoints, log_weight, weight_anchor
from tandem.errors import GenerationError


@pytest.mark.parametrize("every", [1, 3, 4])
@pytest.mark.parametrize("lag", [0, 1, 5])
def test_the_anchor_is_the_longest_multiple_that_is_a_lag_old(every: int, lag: int) -> None:
    for step in range(40):
        old_enough = [length for length in range(0, step + 1, every) if length + lag <= step]
        assert weight_anchor(step, every, lag) == max(old_enough, default=0)


def test_interval_zero_is_static() -> None:
    assert [weight_anchor(step, 0, 2) for step in range(9)] == [0] * 9
    assert list(checkpoints(7, 0, 2)) == [0]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_is_a_function_of_the_prefix(momentum: float) -> None:
    """Oracle: one running average that walks from step 0; blending the checkpoints gives the same in any order."""
    rng = np.random.default_rng(1)
    every, lag = 3, 2
    estimates = {length: rng.normal(size=4) for length in range(0, 40, every)}
    lists = {length: scores.tolist() for length, scores in estimates.items()}
    running, at_step = estimates[0], {}
    for step in range(30):
        if step >= lag and (step - lag) % every == 0 and step - lag > 0:
            running = momentum * running + (1 - momentum) * estimates[step - lag]
        at_step[step] = running
    for step in reversed(range(30)):
        scores = None
        for length in checkpoints(step, every, lag):
            scores = blend(scores, lists[length], momentum)
        assert scores is not None
        np.testing.assert_allclose(scores, at_step[step], rtol=0, atol=1e-15)


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.3, 0.9])
def test_blended_scores_are_plain_floats_to_the_last_bit(momentum: float) -> None:
    """A cache key and a seed of distributions: whoever computes it again must get the very same floats."""
    old, new = (0.1, -3.7, 1e-9), (0.7, 2.3, -1e9)
    blended = blend(old, new, momentum)
    assert blended == tuple(momentum * a + (1.0 - momentum) * b for a, b in zip(old, new, strict=True))
    assert {type(score) for score in blended} == {float}
    assert blend(None, new, momentum) == new
    with pytest.raises(ValueError, match="shorter"):
        blend(old, new[:2], momentum)


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
def test_a_score_that_is_no_number_below_infinity_is_one_sentence(bad: float) -> None:
    with pytest.raises(
        GenerationError,
        match=rf"^Document scores must be numbers .*, got \[{bad}, 1.0\]; check the scoring model\.$",
    ):
        log_weight([bad, 1.0])


def test_wrong_settings_are_one_sentence() -> None:
    with pytest.raises(GenerationError, match="are -1 and 0 tokens; set them to at least 0"):
        weight_anchor(3, -1, 0)
    with pytest.raises(GenerationError, match=r"must lie in \[0, 1\), got 1; set 0 for none"):
        blend(None, [1.0], 1)
