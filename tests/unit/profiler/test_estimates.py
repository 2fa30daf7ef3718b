"""Draft windows, and estimates from measurements."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import Any

import pytest

from tandem.messages import Observation
from tandem.profiler.estimates import DecodeLine, Estimator, draft_window
from tandem.topology import PARTIES, Party

DEVICE, CLOUD = PARTIES
LINE = DecodeLine.fit([50, 100, 200], [0.06, 0.07, 0.09])


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


def test_nothing_is_known_at_first() -> None:
    estimates = Estimator({DEVICE: LINE}).estimate(1)
    assert estimates.decode_s[DEVICE] == pytest.approx(LINE.predict(51))
    assert isnan(estimates.decode_s[CLOUD])
    assert all(isnan(rate) for rate in estimates.acceptance.values())
    assert isnan(estimates.rtt_s)
    assert estimates.window(DEVICE) == estimates.window(CLOUD) == 2


def test_one_measurement_is_the_estimate() -> None:
    estimator = Estimator({})
    assert estimator.add(measurement(bytes_per_s=1e5)) == ()
    estimates = estimator.estimate(1)
    assert estimates.decode_s == {DEVICE: 0.05, CLOUD: 0.1}
    assert estimates.acceptance == {DEVICE: 0.9, CLOUD: 0.5}
    assert (estimates.rtt_s, estimates.rtt_average_s, estimates.bytes_per_s) == (0.3, 0.3, 1e5)
    assert (estimates.window(DEVICE), estimates.window(CLOUD)) == (6, 6)
    estimator.add(measurement(bytes_per_s=nan, rtt_s=nan))
    assert (estimator.estimate(2).rtt_s, estimator.estimate(2).bytes_per_s) == (0.3, 1e5)


def test_every_time_that_is_not_believed_is_a_note_of_its_party() -> None:
    estimator = Estimator({})
    notes = estimator.add(measurement(step=2, decode_s=(inf, -1.0)))
    assert [note.partition(":")[0] for note in notes] == ["device", "cloud"]


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
