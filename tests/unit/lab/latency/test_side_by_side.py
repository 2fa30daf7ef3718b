"""The deployments of a benchmark side by side, for both of its tables."""

from __future__ import annotations

from dataclasses import replace

from tandem_lab.latency.tables import text_of
from tandem_lab.speculative.tables import text_of as speculative_text_of
from tests.unit.lab.latency.cells import SETTING, TOKENS, cell, record
from tests.unit.lab.speculative import cells as speculative

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
    title, header, device, mirror = compared(text_of([on_ray, joined]))
    assert " ".join(title).endswith(str(SETTING))
    assert header[:2] == ["ray/join", "ms/token"]
    assert device == ["CRCG/device", "60.0/60.0", "1.00", "500/500", "300/300", "400/400"]
    assert mirror == ["Tandem/mirror", "80.0/60.0", "0.75", "500/500", "300/300", "400/400", "0/1"]


def test_the_table_of_speculative_decoding_has_them_too() -> None:
    on_ray = speculative.cell()
    slower = tuple(speculative.record(name, 2 * pace_s) for name, pace_s in speculative.PACES_S.items())
    joined = speculative.cell(replace(speculative.SETTING, deployment="join"), *slower)
    _, _, *rows = compared(speculative_text_of([joined, on_ray]))
    assert [row[0] for row in rows] == list(speculative.PACES_S)
    assert rows[0] == ["asked", "127.0/254.0", "2.00", "300/300", "40/40", "60/60", "0/0"]


def test_one_deployment_is_compared_with_nothing() -> None:
    for cells in ([cell()], [cell(setting=JOINED)], [cell(), cell(setting=replace(JOINED, rtt_s=0.0))]):
        assert "side by side" not in text_of(cells)
