"""The suite of speculative decoding: from records to rows, promises and the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tandem_lab.bench.records import append_cell, read_cells
from tandem_lab.bench.speculative import SUITE
from tests.unit.lab.bench.cells import PACES_S, TOKENS
from tests.unit.lab.bench.cells import PROPOSING as SETTING
from tests.unit.lab.bench.cells import proposed as record
from tests.unit.lab.bench.cells import proposing_cell as cell

checks_of, rows_of, text_of, values_of = SUITE.checks_of, SUITE.rows_of, SUITE.text_of, SUITE.values_of


def test_a_row_is_what_its_records_say() -> None:
    row = rows_of(cell())["pipelined"]
    assert row.token_s == pytest.approx(0.045)
    assert (row.first_s, row.num_tokens, row.num_runs) == (0.3, 5, 1)
    assert (row.accepted, row.forwards) == ({"device": 0.6}, {"device": 1.6, "cloud": 0.4})
    assert (row.data_bytes("device"), row.data_bytes("cloud")) == (40.0, 60.0)
    assert row.num_wrong == 0
    assert (row.predicted_s, row.prediction.forwards["cloud"]) == (0.045, 0.4)


def test_promises_hold_and_do_not() -> None:
    good = {check.promise: check.holds for check in checks_of(cell())}
    assert len(good) == len(PACES_S) + 3
    assert all(good.values())
    slow = [record(name, 0.2 if name == "cloud_goes_on" else pace_s) for name, pace_s in PACES_S.items()]
    bad = {check.promise: check for check in checks_of(cell(SETTING, *slow))}
    broken = [promise for promise, check in bad.items() if not check.holds]
    assert broken == [
        "cloud_goes_on takes at most 1.05 x the streamed cloud",
        "times per token are within 10% of the prediction",
    ]
    assert "furthest: cloud_goes_on, +700%" in str(bad[broken[1]])


def test_the_speed_is_asked_for_at_high_acceptance_only() -> None:
    asked_for = "pipelined is 2 x as fast as asking for each token where 0.85 are accepted"
    for acceptance, holds in ((0.9, True), (0.7, None)):
        found = {check.promise: check.holds for check in checks_of(cell(acceptance=acceptance))}
        assert found[asked_for] is holds
    slow_link = cell(replace(SETTING, bits_per_s=1e4))
    assert asked_for not in [check.promise for check in checks_of(slow_link)]


def test_a_wrong_token_is_found() -> None:
    other = record("pipelined", 0.045, token_ids=(*TOKENS[:-1], 1))
    found = rows_of(cell(SETTING, other))
    assert found["pipelined"].num_wrong == 1
    free = record("pipelined/rejection", 0.045, token_ids=(1, 1, 1, 1, 1))
    assert rows_of(cell(SETTING, free))["pipelined/rejection"].num_wrong is None


def test_cells_come_back_from_a_file(tmp_path: Path) -> None:
    written = cell(replace(SETTING, bits_per_s=1e5))
    append_cell(tmp_path / "cells.jsonl", written)
    (kept,) = read_cells(tmp_path / "cells.jsonl")
    assert kept.setting == written.setting
    for name, row in rows_of(kept).items():
        assert row.token_s == pytest.approx(PACES_S[name])
        assert row.num_wrong == 0
    assert kept.predictions == written.predictions


def test_the_table_has_measured_and_predicted() -> None:
    text = text_of([cell(replace(SETTING, bits_per_s=1e4))])
    assert "RTT 100 ms, 10 kbit/s, T 1" in text
    line = next(line for line in text.splitlines() if line.startswith("pipelined "))
    words = line.split()
    assert words[1:3] == ["45.0", "45.0"]
    assert {"0.40/0.40", "1.60/1.50", "40/50", "60/40"} <= set(words)
    assert max(map(len, text.splitlines())) <= 132
    assert "models close to each other" in text_of([cell(replace(SETTING, models="close"))])
    assert values_of([cell()])[0]["rows"][0]["system"] == "asked"
