"""The bundled traces are what their names and the papers say."""

from __future__ import annotations

import math
import statistics

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.bundled import PERIOD_S, bundled, bundled_names
from tandem_lab.netlab.schedule import format_schedule, parse_schedule


def test_every_bundled_trace_survives_its_file() -> None:
    for name in bundled_names():
        trace = bundled(name)
        assert trace.name == name
        read = parse_schedule(format_schedule(trace), name)
        assert [row.time_s for row in read.rows] == [row.time_s for row in trace.rows]
        for got, wanted in zip(read.rows, trace.rows, strict=True):
            assert got.shape.rtt_s == pytest.approx(wanted.shape.rtt_s, abs=1e-9)


@pytest.mark.parametrize("rtt_ms", [0, 50, 100, 200, 300])
def test_constant(rtt_ms: int) -> None:
    assert bundled(f"constant-{rtt_ms}").value_at(1e6).rtt_s == rtt_ms / 1e3


def test_jitter_is_a_fifth_of_the_rtt() -> None:
    assert bundled("jitter-300").value_at(0).jitter_s == pytest.approx(0.06)


def test_random_stays_within_a_fifth_and_repeats() -> None:
    trace = bundled("random-200")
    rtts_s = [row.shape.rtt_s for row in trace.rows]
    assert all(0.16 <= rtt <= 0.24 for rtt in rtts_s)
    assert statistics.mean(rtts_s) == pytest.approx(0.2, rel=0.03)
    assert len(set(rtts_s)) == len(rtts_s) == 300
    assert trace == bundled("random-200")


def test_sinusoid_has_dragons_period_and_amplitude() -> None:
    trace = bundled("sinusoid-100")
    assert pytest.approx(20 * math.pi) == PERIOD_S
    rtts_s = [row.shape.rtt_s for row in trace.rows]
    assert max(rtts_s) == pytest.approx(0.12, rel=1e-3)
    assert min(rtts_s) == pytest.approx(0.08, rel=1e-3)
    assert trace.value_at(PERIOD_S / 4).rtt_s == pytest.approx(0.12, rel=1e-2)
    assert trace.end_s >= 4 * PERIOD_S


def test_mobile_links_have_flexspecs_rates() -> None:
    rates = {name: bundled(name).value_at(0).rate_bits_per_s for name in ("5g", "4g", "weak-wifi")}
    assert rates == {"5g": 300e6, "4g": 50e6, "weak-wifi": 10e6}
    assert bundled("walk").value_at(45) == bundled("weak-wifi").value_at(0)


def test_the_link_goes_away_for_10_s_and_returns() -> None:
    trace = bundled("outage-100")
    assert [trace.value_at(time).loss for time in (19.9, 20, 29.9, 30, 100)] == [0, 1, 1, 0, 0]
    assert "ended at 60 s" in trace.note_at(61)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(NetLabError, match="nearest bundled one is 'sinusoid-100'"):
        bundled("sinus-100")
