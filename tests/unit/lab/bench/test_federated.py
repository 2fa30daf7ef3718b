"""The suite of federated decoding: promises and the table of made-up cells."""

from __future__ import annotations

from dataclasses import replace

from tandem_lab.bench.federated import SUITE
from tandem_lab.bench.records import Cell
from tests.unit.lab.bench.cells import VOTING as SETTING
from tests.unit.lab.bench.cells import WORKERS_S as PACES_S
from tests.unit.lab.bench.cells import voted as record
from tests.unit.lab.bench.cells import voting_cell as cell

checks_of, text_of, values_of = SUITE.checks_of, SUITE.text_of, SUITE.values_of


def test_promises_hold_or_not() -> None:
    assert [check.holds for check in checks_of(cell())] == [True] * 7
    slow = [record(name, pace_s * (2 if name == "pipelined" else 1)) for name, pace_s in PACES_S.items()]
    assert [check.holds for check in checks_of(cell(records=tuple(slow)))] == [True] * 4 + [
        False,
        True,
        False,
    ]
    wrong = replace(record("pipelined", 0.025), token_ids=(5, 6, 7, 8, 0))
    assert not checks_of(cell(records=(wrong,)))[0].holds
    large = cell(61.0)
    assert [check.holds for check in checks_of(large)][5] is False


def test_the_table_names_setting_and_stragglers() -> None:
    text = text_of([cell()])
    assert text.startswith(
        "models close to each other, 2 workers, one 4 times as slow, cluster, decode floors 15 ms"
    )
    (line,) = [each for each in text.splitlines() if each.startswith("pipelined ")][:1]
    assert line.split()[-5:] == ["20", "45", "96.4", "0", "20/80"]
    assert values_of([cell()])[0]["rows"][0]["system"] == "token-wise"
    assert Cell.from_json(cell().to_json()).setting == SETTING
