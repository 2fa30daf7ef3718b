"""Rows: medians over runs, sums per token, tokens that are wrong; and deployments side by side."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from tandem.topology import Party
from tandem_lab.bench import dual, federated, speculative
from tandem_lab.bench.suite import num_wrong, pace_s
from tests.unit.lab.bench.cells import (
    PACES_S,
    PROPOSING,
    SETTING,
    TOKENS,
    cell,
    proposed,
    proposing_cell,
    record,
    voting_cell,
)

rows_of = dual.LATENCY.rows_of


def test_the_pace_of_a_run_is_over_all_its_gaps() -> None:
    short = record("CRCG/device", 0.1, token_ids=TOKENS[:2], committed_s=(0.5, 1.5))
    assert pace_s([record("CRCG/device", 0.1), short]) == pytest.approx((0.4 + 1.0) / 5)
    single = record("CRCG/device", 0.1, token_ids=TOKENS[:1], committed_s=(0.5,))
    assert pace_s([short, single]) == pytest.approx(1.0), "an answer of one token has no gap"
    assert isnan(pace_s([single]))


def test_the_tokens_of_the_first_frame_set_the_time() -> None:
    at_once = proposed("pipelined", 0.0, committed_s=(0.3, 0.3, 0.3, 0.4, 0.5))
    assert pace_s([at_once]) == pytest.approx(0.1)
    sequence_wise = record("DRDG/SW", 0.0, committed_s=(1.2,) * 5, drafted_s=0.2)
    assert pace_s([sequence_wise]) == pytest.approx(0.25), "since the first draft"


def test_a_row_holds_medians_over_runs() -> None:
    row = rows_of(cell())["Tandem/mirror"]
    assert row.token_s == pytest.approx(0.08), "not the mean of 0.07, 0.08, 0.10"
    assert (row.token_s_p25, row.token_s_p75) == pytest.approx((0.075, 0.09))
    assert row.first_s == 0.5
    assert (row.num_runs, row.num_tokens) == (3, 30)


def test_a_row_holds_sums_a_token() -> None:
    row = rows_of(cell())["Tandem/mirror"]
    assert row.accepted == {Party.DEVICE: 0.6, Party.CLOUD: 0.8}
    assert row.forwards == {Party.DEVICE: 2.0, Party.CLOUD: 1.0}
    assert row.lost_s == pytest.approx({Party.DEVICE: 0.06, Party.CLOUD: 0.0})
    assert row.waited_s == pytest.approx(0.02)
    assert row.cpu_s == pytest.approx({Party.DEVICE: 0.05, Party.CLOUD: 0.02})
    assert row.frame_bytes == {Party.DEVICE: 100, Party.CLOUD: 200}
    assert row.bytes_per_frame == {Party.DEVICE: 100, Party.CLOUD: 100}
    assert row.wire_bytes[Party.CLOUD] == {"data": 400, "ray": 60, "other": 1.4}
    assert row.frame_share == pytest.approx(1500 / (1700 + 2300)), "pings are not in it"


def test_what_one_record_does_not_know_the_row_does_not() -> None:
    one = cell()
    lone = replace(one, records=tuple(replace(each, num_accepted={}) for each in one.records))
    assert rows_of(lone)["CRCG/device"].accepted == {}
    some = replace(one, records=(replace(one.records[0], num_accepted={}), *one.records[1:]))
    assert isnan(rows_of(some)[one.records[0].system].accepted[Party.DEVICE])


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
    assert rows_of(one)["Tandem/mirror"].num_wrong == 0
    assert rows_of(one)["CRCG/device"].num_wrong is None
    assert rows_of(one)["Tandem/device/algorithm1"].num_wrong is None


def test_a_row_of_workers() -> None:
    row = federated.SUITE.rows_of(voting_cell())["pipelined"]
    assert row.waited_for == {"worker-1": 0.2, "worker-2": 0.8}
    assert (row.accepted, row.forwards) == (
        {"server": 0.6},
        {"server": 1.6, "worker-1": 0.4, "worker-2": 0.6},
    )
    assert row.prediction.forwards["server"] == 1.5


# ---- Deployments side by side ------------------------------------------------------------------------------------


JOINED = replace(SETTING, deployment="join")


def compared(text: str) -> list[list[str]]:
    """The lines of the comparison, as words."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("deployments side by side"))
    return [line.split() for line in lines[start : lines.index("", start)]]


def test_each_system_that_both_measured_has_its_pairs() -> None:
    on_ray = cell({"CRCG/device": [0.06], "DRDG/TW": [0.3], "Tandem/mirror": [0.08]})
    wrong = record("Tandem/mirror", 0.06, token_ids=(*TOKENS[:-1], 0))
    joined = cell(setting=JOINED, records=(record("CRCG/device", 0.06), wrong))
    title, header, device, mirror = compared(dual.LATENCY.text_of([on_ray, joined]))
    assert " ".join(title).endswith(str(SETTING))
    assert header[:2] == ["ray/join", "ms/token"]
    assert device == ["CRCG/device", "60.0/60.0", "1.00", "500/500", "300/300", "400/400", "-/-"]
    assert mirror == ["Tandem/mirror", "80.0/60.0", "0.75", "500/500", "300/300", "400/400", "0/1"]


def test_the_table_of_speculative_decoding_has_them_too() -> None:
    slower = tuple(proposed(name, 2 * pace_s) for name, pace_s in PACES_S.items())
    joined = proposing_cell(replace(PROPOSING, deployment="join"), *slower)
    _, _, *rows = compared(speculative.SUITE.text_of([joined, proposing_cell()]))
    assert [row[0] for row in rows] == list(PACES_S)
    assert rows[0] == ["asked", "127.0/254.0", "2.00", "300/300", "40/40", "60/60", "0/0"]


def test_one_deployment_is_compared_with_nothing() -> None:
    for cells in ([cell()], [cell(setting=JOINED)], [cell(), cell(setting=replace(JOINED, rtt_s=0.0))]):
        assert "side by side" not in dual.LATENCY.text_of(cells)
