"""Draft windows, moving averages, and estimates from measurements."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import Any

import pytest

from tandem.messages import Observation
from tandem.profiler.estimates import Estimator, MovingAverage, draft_window
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
