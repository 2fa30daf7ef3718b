"""Rows, checks, tables and the picture of made-up cells."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tandem_lab.federated.rows import checks_of, rows_of
from tandem_lab.federated.tables import text_of, values_of
from tandem_lab.latency.records import Cell, Record, Setting
from tandem_lab.plots import save

TOKENS = (5, 9, 4, 7, 8)
PACES_S = {"token-wise": 0.128, "stop_and_wait": 0.045, "pipelined": 0.025}
SETTING = Setting(
    data_plane="socket", floors_s=(0.015, 0.027), rtt_s=0.1, temperature=1.0, max_new_tokens=48, models="close",
    num_workers=2, slow=4.0,
)  # fmt: skip


def record(system: str, pace_s: float, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "system": system,
        "run": 0,
        "question": 0,
        "token_ids": TOKENS,
        "committed_s": tuple(accumulate([0.3, *[pace_s] * (len(TOKENS) - 1)])),
        "num_accepted": {"server": 3},
        "num_forwards": {"server": 8, "worker-1": 2, "worker-2": 3},
        "waited_for": {"worker-2": 4, "worker-1": 1},
        "wire_bytes": {"device": {"data": 200, "ray": 9}, "cloud": {"data": 300, "ray": 9}},
    }
    return Record(**(values | changes))


def cell(**changes: Any) -> Cell:
    values: dict[str, Any] = {
        "plan": {"systems": list(PACES_S), "runs": 1, "questions": 1, "settings": ""},
        "records": tuple(record(name, pace_s) for name, pace_s in PACES_S.items()),
        "predicted_s": dict(PACES_S),
        "predicted_forwards": {"pipelined": {"server": 1.5, "worker-1": 0.4, "worker-2": 0.6}},
        "predicted_speedup": {},
        "predicted_also": {"pipelined": {"vote_bytes": 45.0, "certified": 0.964}},
        "reference": (TOKENS,),
        "ping_s": (0.1, 0.101),
    }
    return Cell(setting=SETTING, **(values | changes))


def test_a_row_is_per_token_and_worker() -> None:
    rows = rows_of(cell())
    assert list(rows) == list(PACES_S)
    row = rows["pipelined"]
    assert row.token_s == pytest.approx(0.025)
    assert (row.accepted, row.drafts, row.passes) == (0.6, 1.6, 0.5)
    assert (row.up_bytes, row.down_bytes) == (30.0, 20.0)
    assert row.waited_for == {"worker-1": 0.2, "worker-2": 0.8}
    assert (row.predicted["drafts"], row.predicted["passes"]) == (1.5, 0.5)
    assert row.num_wrong == 0


def test_promises_hold_or_not() -> None:
    assert [check.holds for check in checks_of(cell())] == [True] * 5
    slow = [record(name, pace_s * (2 if name == "pipelined" else 1)) for name, pace_s in PACES_S.items()]
    assert [check.holds for check in checks_of(cell(records=tuple(slow)))] == [True, True, False, True, False]
    wrong = replace(record("pipelined", 0.025), token_ids=(5, 9, 4, 7, 0))
    assert not checks_of(cell(records=(wrong,)))[0].holds
    large = cell(predicted_also={"pipelined": {"vote_bytes": 61.0}})
    assert [check.holds for check in checks_of(large)][3] is False


def test_the_table_names_setting_and_stragglers() -> None:
    text = text_of([cell()])
    assert text.startswith(
        "models close to each other, 2 workers, one 4 times as slow, socket, decode floors 15 ms"
    )
    (line,) = [each for each in text.splitlines() if each.startswith("pipelined ")][:1]
    assert line.endswith("45    96.4     0  20/80")
    assert values_of([cell()])[0]["rows"][0]["system"] == "token-wise"
    assert Cell.from_json(cell().to_json()).setting == SETTING


def test_a_picture_has_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last plot, too, whose times are the longest."""
    pytest.importorskip("matplotlib", reason="plots need the extra [lab]")
    from tandem_lab.federated import plot

    figures: list[Any] = []

    def keep(figure: Any, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(plot, "save", keep)
    slow = [record(name, 3 * pace_s) for name, pace_s in PACES_S.items()]
    more = replace(cell(records=tuple(slow)), setting=replace(SETTING, num_workers=4))
    plot.plot_times([cell(), more], tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 1000
    low, high = figures[0].axes[-1].get_ylim()
    assert low == 0.0
    assert high > 3 * 128
