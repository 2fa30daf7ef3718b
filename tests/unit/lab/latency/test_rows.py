"""Rows: medians over runs, sums per token, and tokens that are wrong."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from tandem.topology import Party
from tandem_lab.latency.rows import num_wrong, pace_s, row_of
from tests.unit.lab.latency.cells import TOKENS, cell, record


def test_the_pace_of_a_run_is_over_all_its_gaps() -> None:
    short = record("CRCG/device", 0.1, token_ids=TOKENS[:2], committed_s=(0.5, 1.5))
    assert pace_s([record("CRCG/device", 0.1), short]) == pytest.approx((0.4 + 1.0) / 5)
    single = record("CRCG/device", 0.1, token_ids=TOKENS[:1], committed_s=(0.5,))
    assert pace_s([short, single]) == pytest.approx(1.0), "an answer of one token has no gap"
    assert isnan(pace_s([single]))


def test_a_row_holds_medians_over_runs() -> None:
    row = row_of(cell(), "Tandem/mirror")
    assert row.token_s == pytest.approx(0.08), "not the mean of 0.07, 0.08, 0.10"
    assert (row.token_s_p25, row.token_s_p75) == pytest.approx((0.075, 0.09))
    assert row.ttft_s == 0.5
    assert (row.num_runs, row.num_tokens) == (3, 10)


def test_a_row_holds_sums_a_token() -> None:
    row = row_of(cell(), "Tandem/mirror")
    assert row.acceptance == {Party.DEVICE: 0.6, Party.CLOUD: 0.8}
    assert row.forwards_per_token == {Party.DEVICE: 2.0, Party.CLOUD: 1.0}
    assert row.abandoned_per_token == {Party.DEVICE: 0.4, Party.CLOUD: 0.0}
    assert row.lost_s == pytest.approx({Party.DEVICE: 0.06, Party.CLOUD: 0.0})
    assert row.waited_s == pytest.approx(0.02)
    assert row.cpu_s == pytest.approx({Party.DEVICE: 0.05, Party.CLOUD: 0.02})
    assert row.frame_bytes == {Party.DEVICE: 100, Party.CLOUD: 200}
    assert row.bytes_per_frame == {Party.DEVICE: 100, Party.CLOUD: 100}
    assert row.wire_bytes[Party.CLOUD] == {"data": 400, "ray": 60, "other": 1.4}
    assert row.frame_share == pytest.approx(1500 / (1700 + 2300)), "pings are not in it"
    assert row.messages == {Party.DEVICE: 0.8, Party.CLOUD: 1.6}


def test_what_one_record_does_not_know_the_row_does_not() -> None:
    one = cell()
    lone = replace(one, records=tuple(replace(each, num_accepted={}) for each in one.records))
    assert isnan(row_of(lone, "CRCG/device").acceptance[Party.DEVICE])
    before = replace(one, records=tuple(replace(each, num_abandoned={}) for each in one.records))
    assert isnan(row_of(before, "Tandem/mirror").abandoned_per_token[Party.DEVICE])


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (TOKENS, 0),
        ((5, 6, 0, 8, 9), 1),
        (TOKENS[:-1], 1),
        ((*TOKENS, 1), 1),
        ((6, 7, 8, 9), 5),
        ((), 5),
    ],
)
def test_wrong_tokens_are_counted_by_position(tokens: tuple[int, ...], count: int) -> None:
    assert num_wrong([record("Tandem/mirror", 0.1, token_ids=tokens)], [TOKENS]) == count


def test_only_systems_that_must_agree_have_wrong_tokens() -> None:
    one = cell({"Tandem/mirror": [0.1], "CRCG/device": [0.1], "Tandem/device/algorithm1": [0.1]})
    assert row_of(one, "Tandem/mirror").num_wrong == 0
    assert row_of(one, "CRCG/device").num_wrong is None
    assert row_of(one, "Tandem/device/algorithm1").num_wrong is None
