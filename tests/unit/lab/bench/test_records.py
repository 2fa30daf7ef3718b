"""Records and cells: what is derived from them, and that a file of them survives an interruption."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import pytest

from tandem.errors import TandemError
from tandem.topology import Party
from tandem_lab.bench.records import Cell, Prediction, append_cell, latest, read_cells
from tandem_lab.netlab.shape import parse_duration
from tests.unit.lab.bench.cells import HALF, SETTING, cell, record


def test_times_of_a_record() -> None:
    found = record("Tandem/mirror", 0.1)
    assert found.ttft_s == 0.5
    assert found.span_s == pytest.approx(0.4)
    sequence_wise = record("DRDG/SW", 0.0, committed_s=(1.2,) * 5, drafted_s=0.2)
    assert sequence_wise.span_s == pytest.approx(1.0), "from the first draft on"
    assert isnan(record("CRCG/device", 0.1, token_ids=(), committed_s=()).ttft_s)


def test_what_rollback_lost_is_the_decode_time_of_the_other_drafts() -> None:
    found = record("Tandem/mirror", 0.1)  # 5 tokens; 10 forwards in 0.6 s, 5 in 0.125 s
    assert found.lost_s(Party.DEVICE) == pytest.approx(0.3)
    assert found.lost_s(Party.CLOUD) == 0
    assert isnan(record("CRCG/device", 0.1, num_forwards={"device": 5, "cloud": 0}).lost_s(Party.CLOUD))


def test_a_cell_survives_its_file(tmp_path: Path) -> None:
    path, one = tmp_path / "cells.jsonl", cell()
    append_cell(path, one)
    append_cell(path, cell({"CRCG/device": [0.06]}))
    found = read_cells(path)
    assert [each.plan["systems"] for each in found] == [one.plan["systems"], ["CRCG/device"]]
    assert found[0].setting == one.setting
    assert found[0].reference == one.reference
    assert found[0].records[0].committed_s == pytest.approx(one.records[0].committed_s)
    assert isnan(found[0].records[0].drafted_s), "null is what is not known"
    assert found[0].records[0].num_frames == one.records[0].num_frames
    assert found[0].predictions == one.predictions


def test_a_line_that_was_cut_short_is_left_out_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    append_cell(path, cell())
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    assert len(read_cells(path)) == 1
    append_cell(path, cell())
    assert len(read_cells(path)) == 2
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("line", ["{}", "[]", '{"format": 0}', "x", '{"format": 2, "setting": {}}'])
def test_another_file_is_one_sentence(line: str, tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(f"{line}\n{cell().to_json()}\n")
    with pytest.raises(
        TandemError, match=r"must be one cell of this benchmark, but line 1 is not; give another"
    ):
        read_cells(path)


def test_only_what_was_measured_as_planned_counts() -> None:
    one = cell()
    assert latest([one], SETTING, one.plan) is one
    assert latest([one], SETTING, one.plan | {"runs": 4}) is None
    assert latest([one], SETTING, one.plan | {"systems": ["CRCG/device"]}) is None
    other = cell(setting=type(SETTING)(**{**_fields(one), "rtt_s": 0.0}))
    assert latest([one, other], SETTING, one.plan) is one
    assert latest([one, again := cell()], SETTING, one.plan) is again, "the last one"


@pytest.mark.parametrize("milliseconds", [9, 13, 18, 26, 36, 43, 72, 104, 300])
def test_a_cell_is_found_whatever_its_round_trip(milliseconds: int, tmp_path: Path) -> None:
    """Many are no short decimals in seconds."""
    setting = replace(SETTING, rtt_s=parse_duration(f"{milliseconds}ms"))
    append_cell(tmp_path / "cells.jsonl", one := cell(setting=setting))
    (found,) = read_cells(tmp_path / "cells.jsonl")
    assert found.setting == setting
    assert latest([found], setting, one.plan) is found


def test_other_settings_are_another_plan() -> None:
    one = cell()
    assert latest([one], SETTING, one.plan | {"settings": "fedcba9876543210"}) is None


def test_without_floors_is_another_setting() -> None:
    bare = cell(setting=type(SETTING)(**{**_fields(cell()), "floors_s": None}))
    assert Cell.from_json(bare.to_json()).setting == bare.setting
    assert "no decode floors" in str(bare.setting)
    assert "60 ms device, 25 ms cloud" in str(SETTING)


def _fields(one: Cell) -> dict[str, object]:
    names = ("floors_s", "rtt_s", "temperature", "max_new_tokens")
    return {name: getattr(one.setting, name) for name in names}


def test_other_models_are_another_setting() -> None:
    half = cell(setting=HALF)
    assert Cell.from_json(half.to_json()).setting == HALF != SETTING
    assert str(HALF) == f"half of the drafts accepted, {SETTING}"


def test_another_deployment_is_another_setting() -> None:
    joined = cell(setting=replace(SETTING, deployment="join"))
    assert Cell.from_json(joined.to_json()).setting == joined.setting != SETTING
    assert str(joined.setting) == str(SETTING).replace("cluster", "join link")
    assert [each.variant for each in (SETTING, joined.setting)] == ["", "join link"]


def test_nan_is_no_number_in_the_file() -> None:
    line = cell(predictions={"Tandem/mirror": Prediction(token_s=nan)}).to_json()
    assert "NaN" not in line
