"""Records and cells: what is derived from them, and that a file of them survives an interruption."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import pytest

from tandem.errors import TandemError
from tandem_lab.bench.records import Cell, Prediction, append_cell, latest, read_cells
from tests.unit.lab.bench.cells import HALF, SETTING, VOTING, cell


def test_a_cell_survives_its_file_and_a_line_that_was_cut_short(tmp_path: Path) -> None:
    path, one = tmp_path / "cells.jsonl", cell(predictions={"Tandem/mirror": Prediction(token_s=nan)})
    append_cell(path, one)
    whole = path.read_text()
    assert "NaN" not in whole
    path.write_text(whole + whole[: len(whole) // 2])
    append_cell(path, cell({"CRCG/device": [0.06]}))
    first, second = read_cells(path)
    assert (first.plan, first.setting, first.reference) == (one.plan, one.setting, one.reference)
    assert first.records[0].committed_s == pytest.approx(one.records[0].committed_s)
    assert isnan(first.records[0].drafted_s), "null is what is not known"
    assert first.records[0].num_frames == one.records[0].num_frames
    assert second.plan["systems"] == ["CRCG/device"]
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("line", ["{}", "[]", '{"format": 0}', "x", '{"format": 2, "setting": {}}'])
def test_another_file_is_one_sentence(line: str, tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(f"{line}\n{cell().to_json()}\n")
    with pytest.raises(TandemError, match=r"must be one cell of this benchmark, but line 1 is not; give"):
        read_cells(path)


def test_only_what_was_measured_as_planned_counts() -> None:
    one = cell()
    assert latest([one], SETTING, one.plan) is one
    for change in ({"runs": 4}, {"systems": ["CRCG/device"]}, {"settings": "fedcba9876543210"}):
        assert latest([one], SETTING, one.plan | change) is None
    for other in (HALF, VOTING, *(replace(SETTING, **change) for change in CHANGES)):
        assert Cell.from_json(cell(setting=other).to_json()).setting == other
        assert latest([one, cell(setting=other)], SETTING, one.plan) is one
        assert str(other) != str(SETTING)
    assert latest([one, again := cell()], SETTING, one.plan) is again, "the last one"


CHANGES = ({"rtt_s": 0.0}, {"floors_s": None}, {"deployment": "join"}, {"bits_per_s": 1e5})
