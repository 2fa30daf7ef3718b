"""Draft windows, moving averages, the line of decode times, and estimates from measurements."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan, nan
from random import Random
from typing import Any

import numpy as np
import pytest

from tandem.errors import TandemError
from tandem.messages import Observation
from tandem.profiler.estimates import DecodeLine, Estimator, MovingAverage, draft_window
from tandem.topology import PARTIES, Party

DEVICE, CLOUD = PARTIES


def measurement(**changes: Any) -> Observation:
    values: dict[str, Any] = {
        "step": 0,
        "aggregator": 0,
        "decode_s": (0.05, 0.1),
        "acceptance": (0.9, 0.5),
        "rtt_s": 0.3,
        "bytes_per_s": nan,
    }
    return Observation(**{**values, **changes})


@pytest.mark.parametrize(
    ("rtt_s", "own_s", "peer_s", "window"),
    [
        (0.0, 0.03, 0.03, 3),
        (0.25, 0.05, 0.05, 8),  # 6 drafts fill (rtt + c) / c, and two more
        (0.25, 0.05, 0.5, 3),  # the slower party sets the pace
        (0.25, 0.5, 0.05, 4),
        (0.25, 0.05, nan, 8),  # the peer's speed is not known yet
        (nan, 0.05, 0.05, 2),
        (inf, 0.05, 0.05, 2),
        (0.3, nan, 0.05, 2),
        (0.3, 0.0, 0.05, 2),
    ],
)
def test_the_window(rtt_s: float, own_s: float, peer_s: float, window: int) -> None:
    """W = ceil((rtt + c_own) / max(c)) + 2."""
    assert draft_window(rtt_s, own_s, peer_s) == window


def test_an_average_moves_towards_new_values_and_ignores_missing_ones() -> None:
    average = MovingAverage(share=0.25)
    for value, wanted in ((nan, None), (inf, None), (4.0, 4.0), (8.0, 5.0), (nan, 5.0), (-inf, 5.0)):
        average.add(value)
        assert isnan(average.value) if wanted is None else average.value == wanted
    assert average.num_values == 2


@pytest.mark.parametrize("decode_of", [(), (DEVICE,), PARTIES])
@pytest.mark.parametrize("acceptance", [True, False])
def test_what_carries_over_is_independent_of_the_old(decode_of: tuple[Party, ...], acceptance: bool) -> None:
    before = Estimator({})
    before.add(measurement())
    after = before.carry_over({}, decode_of=decode_of, acceptance=acceptance)
    estimates = after.estimate(1)
    assert estimates.rtt_s == 0.3
    assert [party for party in PARTIES if not isnan(estimates.decode_s[party])] == list(decode_of)
    assert isnan(estimates.acceptance[DEVICE]) is not acceptance
    after.add(measurement(rtt_s=9.0, decode_s=(0.2, 0.2)))
    assert before.estimate(1).rtt_s == 0.3
    assert before.estimate(1).decode_s == {DEVICE: 0.05, CLOUD: 0.1}


LINE = DecodeLine(k_a=2.0, k_b=1000.0, k_c=0.01, start=30.0)


def test_fit_is_least_squares_and_k_a_k_b_are_its_moments() -> None:
    rng = Random(1)
    lengths = [rng.randrange(50, 2000) for _ in range(300)]
    seconds = [0.01 + 1e-5 * t + rng.uniform(0, 0.005) for t in lengths]
    line = DecodeLine.fit(lengths, seconds)
    slope, intercept = np.polyfit(lengths, seconds, 1)
    assert (line.start, DecodeLine.fit(lengths, seconds, start=99).start) == (min(lengths), 99.0)
    assert line.predict(1000) == pytest.approx(1000 * slope + intercept, rel=1e-9)
    assert line.slope == pytest.approx(slope, rel=1e-9)
    assert line.k_c == pytest.approx(intercept, rel=1e-9)
    products = [(c - line.k_c) * t for t, c in zip(lengths, seconds, strict=True)]
    assert line.k_a == pytest.approx(np.mean(products), rel=1e-9)
    assert line.k_b == pytest.approx(np.mean(np.square(lengths)), rel=1e-9)


@pytest.mark.parametrize("zeta", [0.05, 0.2, 1.0])
def test_the_slope_converges_to_a_new_one(zeta: float) -> None:
    line, errors = LINE, []
    for step in range(600):
        t = 30 + step
        line = line.update(t, 0.005 * t + LINE.k_c, zeta)
        errors.append(abs(line.slope - 0.005))
    assert all(later <= max(earlier, 1e-12) for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-12


@pytest.mark.parametrize(("t", "seconds"), [(40, nan), (40, inf), (40, -0.1), (nan, 0.1), (0, 0.1)])
def test_what_was_not_measured_changes_nothing(t: float, seconds: float) -> None:
    assert LINE.update(t, seconds) == LINE


@pytest.mark.parametrize(
    ("lengths", "seconds", "sentence"),
    [
        ([], [], "two different context lengths, got 0"),
        ([5, 5], [0.1, 0.2], "two different context lengths, got 1"),
        ([5, 6], [0.1], "got 2 lengths and 1 times"),
        ([5, 6], [0.1, nan], "at least 0, got nan"),
        ([5, 6], [0.1, -0.2], "at least 0, got -0.2"),
        ([5, nan], [0.1, 0.2], "at least 0, got nan"),
    ],
)
def test_points_that_make_no_line(lengths: list[float], seconds: list[float], sentence: str) -> None:
    with pytest.raises(TandemError, match=sentence):
        DecodeLine.fit(lengths, seconds)
