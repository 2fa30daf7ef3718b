"""kappa, checkpoints and momentum against a slow simulation of a decoder that walks along the prefix."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.errors import GenerationError
from tandem.generation.weights import blend, checkpoints, kappa, scores_at


@pytest.mark.parametrize("every", [1, 3, 4])
@pytest.mark.parametrize("lag", [0, 1, 5])
def test_kappa_is_the_longest_multiple_that_is_a_lag_old(every: int, lag: int) -> None:
    for step in range(40):
        old_enough = [length for length in range(0, step + 1, every) if length + lag <= step]
        assert kappa(step, every, lag) == max(old_enough, default=0)


def test_interval_zero_is_static() -> None:
    assert [kappa(step, 0, 2) for step in range(9)] == [0] * 9
    assert list(checkpoints(7, 0, 2)) == [0]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_is_a_function_of_the_prefix(momentum: float) -> None:
    """Oracle: one running average that walks from step 0; `scores_at` gives the same in any order."""
    rng = np.random.default_rng(1)
    every, lag = 3, 2
    estimates = {length: rng.normal(size=4) for length in range(0, 40, every)}
    running, at_step = estimates[0], {}
    for step in range(30):
        if step >= lag and (step - lag) % every == 0 and step - lag > 0:
            running = momentum * running + (1 - momentum) * estimates[step - lag]
        at_step[step] = running
    for step in reversed(range(30)):
        got = scores_at(step, estimates, every=every, lag=lag, momentum=momentum)
        np.testing.assert_allclose(got, at_step[step], rtol=0, atol=1e-15)


def test_a_missing_estimate_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        scores_at(9, {0: [1.0]}, every=4, lag=1)
    with pytest.raises(KeyError):
        scores_at(9, {0: [1.0], 8: [2.0]}, every=4, lag=1, momentum=0.5)
    assert scores_at(9, {8: [2.0]}, every=4, lag=1).tolist() == [2.0]  # without momentum the last suffices


def test_wrong_settings_are_one_sentence() -> None:
    with pytest.raises(GenerationError, match="at least 0 tokens, they are -1 and 0; set an interval of 0"):
        kappa(3, -1, 0)
    with pytest.raises(GenerationError, match=r"lies in \[0, 1\), it is 1"):
        blend(None, [1.0], 1)
