"""What a profiler sends to scheduler and decoder, and what one query leaves to the next."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import pytest

from tandem.messages import DraftWindow, Observation
from tandem.protocol.estimating import ProfilingSession
from tandem.protocol.outbox import Send
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec


def observation(**changes: Any) -> Observation:
    values: dict[str, Any] = {
        "step": 0, "aggregator": 0, "decode_s": (0.05, 0.1), "acceptance": (0.9, 0.5), "rtt_s": 0.3,
        "bytes_per_s": nan,
    }  # fmt: skip
    return Observation(**{**values, **changes})


def windows(sends: list[Send]) -> list[int]:
    return [send.message.size for send in sends if isinstance(send.message, DraftWindow)]


def test_every_step_goes_to_the_scheduler_and_a_changed_window_to_the_decoder() -> None:
    session = ProfilingSession(make_spec(session=1, query="q", seed=0), Party.DEVICE)
    first = session.observe(observation())
    assert [send.to for send in first] == ["scheduler", "decoder"]
    assert windows(first) == [6]  # (0.3 + 0.05) / 0.1, rounded up, and two
    assert [send.to for send in session.observe(observation())] == ["scheduler"]
    assert windows(session.observe(observation(rtt_s=30.0))) != []


def test_what_was_not_measured_is_nan() -> None:
    session = ProfilingSession(make_spec(session=1, query="q", seed=0), Party.DEVICE)
    nothing = observation(decode_s=(nan, nan), acceptance=(nan, nan), rtt_s=nan)
    assert windows(session.observe(nothing)) == [2]
    profile = session.profile()
    assert isnan(profile.rtt_s)
    assert isnan(profile.acceptance[0])
    session.observe(observation())
    assert session.profile().rtt_s == 0.3
    assert session.profile().acceptance[1] == 0.5


def test_an_outlier_is_clamped_and_reported() -> None:
    session = ProfilingSession(make_spec(session=1, query="q", seed=0), Party.DEVICE)
    for step in range(5):
        session.observe(observation(step=step))
    (profile,) = [
        send.message
        for send in session.observe(observation(step=5, decode_s=(0.05, 10.0)))
        if send.to == "scheduler"
    ]
    assert profile.decode_s[1] < 0.15
    assert profile.notes == (
        "cloud: A decode time of 10 s at step 5 was clamped to 0.3 s: 0.1 s was expected.",
    )


@pytest.mark.parametrize(
    ("changes", "keeps_decode", "keeps_acceptance"),
    [({}, True, True), ({"device_documents": 9}, False, True), ({"temperature": 0.7}, True, False)],
)
def test_an_earlier_query_counts_as_far_as_it_fits(
    changes: dict[str, Any], keeps_decode: bool, keeps_acceptance: bool
) -> None:
    before = ProfilingSession(make_spec(session=1, query="q", seed=0), Party.DEVICE)
    before.observe(observation())
    after = ProfilingSession(make_spec(session=2, query="q", seed=0, **changes), Party.DEVICE, before)
    profile = after.profile()
    assert profile.rtt_s == 0.3
    assert isnan(profile.decode_s[0]) is not keeps_decode
    assert isnan(profile.acceptance[0]) is not keeps_acceptance
    after.observe(observation(rtt_s=9.0))
    assert before.profile().rtt_s == 0.3, "each query has its own estimates"
