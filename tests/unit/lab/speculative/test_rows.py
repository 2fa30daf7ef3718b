"""From records to rows, promises, tables and pictures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tandem_lab.latency.records import append_cell, read_cells
from tandem_lab.netlab.bundled import bundled
from tandem_lab.simulation.conditions import Conditions
from tandem_lab.simulation.pacing import play_answer
from tandem_lab.speculative.plot import LOOK, plot_lengths, plot_plane, plot_throughput
from tandem_lab.speculative.rows import checks_of, rows_of
from tandem_lab.speculative.systems import SYSTEMS
from tandem_lab.speculative.tables import text_of, values_of
from tests.unit.lab.speculative.cells import PACES_S, SETTING, TOKENS, cell, record
from tests.unit.lab.timeline.test_pipeline import words


def test_a_row_is_what_its_records_say() -> None:
    row = rows_of(cell())["pipelined"]
    assert row.token_s == pytest.approx(0.045)
    assert (row.first_s, row.num_tokens, row.num_runs) == (0.3, 5, 1)
    assert (row.accepted, row.drafts, row.passes) == (0.6, 1.6, 0.4)
    assert (row.up_bytes, row.down_bytes) == (40.0, 60.0)
    assert row.num_wrong == 0
    assert (row.predicted_s, row.predicted["passes"], row.predicted["first_s"]) == (0.045, 0.4, 0.2)


def test_the_tokens_of_the_first_frame_set_the_time() -> None:
    at_once = record("pipelined", 0.0, committed_s=(0.3, 0.3, 0.3, 0.4, 0.5))
    assert rows_of(cell(SETTING, at_once))["pipelined"].token_s == pytest.approx(0.1)


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
    assert rows_of(kept)["pipelined"].predicted == rows_of(written)["pipelined"].predicted


def test_the_table_has_measured_and_predicted() -> None:
    text = text_of([cell(replace(SETTING, bits_per_s=1e4))])
    assert "RTT 100 ms, 10 kbit/s, T 1" in text
    line = next(line for line in text.splitlines() if line.startswith("pipelined "))
    words = line.split()
    assert words[1:3] == ["45.0", "45.0"]
    assert {"0.40/0.40", "1.60/1.50", "40/50", "60/40"} <= set(words)
    assert max(map(len, text.splitlines())) <= 130
    assert "models close to each other" in text_of([cell(replace(SETTING, models="close"))])
    assert values_of([cell()])[0]["rows"][0]["system"] == "asked"


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra [lab]")
    cells = [
        cell(replace(SETTING, bits_per_s=rate, rtt_s=rtt_s)) for rate in (1e4, None) for rtt_s in (0.0, 0.1)
    ]
    plot_throughput(cells, tmp_path / "throughput.png")
    timing = play_answer(Conditions(rtt_s=0.1), "stop_and_wait", 3, lambda step: step % 4 > 0, 40)
    plot_lengths({"always 3": timing}, bundled("walk"), tmp_path / "lengths.png")
    plot_plane(
        {1.0: {"not quantised": (0.0, 0.7), "ids only": (16.0, 0.6)}}, tmp_path / "plane.png", "made up"
    )
    joined = [cell(replace(each.setting, deployment="join")) for each in cells]
    plot_throughput([*cells, *joined], tmp_path / "both.svg")
    assert {"pipelined", "pipelined, join link"} <= set(words(tmp_path / "both.svg").splitlines())
    assert all(path.stat().st_size > 1000 for path in tmp_path.glob("*.png"))
    assert len(list(tmp_path.glob("*.png"))) == 3
    assert set(LOOK) == {system.name for system in SYSTEMS}


def test_a_long_legend_leaves_the_picture_its_room(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra [lab]")
    records = [record(name, 0.05) for name in LOOK]
    cells = [cell(replace(SETTING, deployment=deployment), *records) for deployment in ("ray", "join")]
    plot_throughput(cells, tmp_path / "both.svg")
    svg = (tmp_path / "both.svg").read_text("utf-8")
    frame = re.search(r'id="axes_1">.*?<path d="(.*?)"', svg, re.S)
    assert frame is not None
    across, down = (
        [float(each) for each in axis]
        for axis in zip(*re.findall(r"([\d.]+) ([\d.]+)", frame[1]), strict=True)
    )
    assert max(across) - min(across) > 4 * 72  # inches in points
    assert max(down) - min(down) > 2 * 72
