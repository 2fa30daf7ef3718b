"""Whatever was measured, the scheduler computes with finite numbers and states each assumption in one sentence."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest

from tandem.scheduler import MAX_S, Situation, choose, fill_gaps
from tandem.topology import PARTIES, Party

BAD = (nan, 0.0, inf, -inf, -1.0, 1e-9, 0.05, 5.0, 1e300)


def fill(**changes: float) -> tuple[Situation, tuple[str, ...]]:
    """What is assumed where some of five good values are bad."""
    values = {
        "device_decode_s": 0.06, "cloud_decode_s": 0.02, "device_acceptance": 0.9, "cloud_acceptance": 0.7,
        "rtt_s": 0.3, **changes,
    }  # fmt: skip
    return fill_gaps(
        {party: values[f"{party}_decode_s"] for party in PARTIES},
        {party: values[f"{party}_acceptance"] for party in PARTIES},
        values["rtt_s"],
    )


@pytest.mark.parametrize(
    "name", ["device_decode_s", "cloud_decode_s", "device_acceptance", "cloud_acceptance", "rtt_s"]
)
@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_stays_finite_and_takes_one_sentence_at_most(name: str, value: float) -> None:
    now, assumed = fill(**{name: value})
    assert isfinite(now.delta_z_s)
    assert {choose(now, party) for party in PARTIES} <= set(PARTIES)
    assert len(assumed) <= 1
    assert all(sentence.endswith("assumed.") and sentence.count(". ") == 0 for sentence in assumed)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cloud_decode_s": nan}, "The decode time of the cloud is nan s; the other party's was assumed."),
        ({"device_decode_s": 0.0}, "The decode time of the device is 0 s; the other party's was assumed."),
        ({"device_decode_s": 1e2}, "The decode time of the device is 100 s; the other party's was assumed."),
        ({"device_acceptance": nan}, "The acceptance rate of the device is nan; 0.5 was assumed."),
        ({"rtt_s": nan}, "The round trip is nan s; 0 s was assumed."),
        ({"rtt_s": inf}, "The round trip is inf s; 60 s was assumed."),
        ({"rtt_s": -0.2}, "The round trip is -0.2 s; 0 s was assumed."),
    ],
)
def test_one_sentence_for_each_assumption(changes: dict[str, float], sentence: str) -> None:
    assert fill(**changes)[1] == (sentence,)


def test_rates_outside_0_to_1_and_long_round_trips_are_cut() -> None:
    now, assumed = fill(device_acceptance=7.0, cloud_acceptance=-3.0, rtt_s=100 * 0.3)
    assert now.acceptance == {Party.DEVICE: 1.0, Party.CLOUD: 0.0}
    assert (now.rtt_s, assumed) == (30.0, ())
    assert fill(rtt_s=1e9)[0].rtt_s == MAX_S
