"""Cells as text for a person and as plain values for a script. Knows rows and checks; writes no file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite, nan
from statistics import median
from typing import Any

from tandem.topology import PARTIES
from tandem_lab.latency.checks import checks_of, rows_of
from tandem_lab.latency.records import Cell
from tandem_lab.latency.rows import Row
from tandem_lab.latency.side_by_side import Figures, side_by_side
from tandem_lab.latency.systems import BY_NAME, DEVICE_ONLY, TOKEN_WISE

TIMES = (
    f"{'system':25} {'ms/token':>8} {'p25-p75':>13} {'predicted':>9} {'/device':>7} {'vs TW':>6} {'TTFT ms':>7} "
    f"{'tok/s':>5}  {'waited':>6}  wrong"
)
COSTS = (
    f"{'system':25} {'accepted':>9} {'expected':>9} {'forwards':>9} {'lost ms':>9} {'CPU ms':>9} {'frames B':>11} "
    f"{'data B':>11} {'ray B':>11} {'share':>5}"
)
LEGEND = """\
Pairs are device/cloud. All but TTFT is a token. ms/token: (t_last - t_first) / (n - 1), median of runs and quartiles.
/device, vs TW: beside CRCG/device and DRDG/TW. waited: for the link, beyond what the slower decoder takes.
wrong: tokens that are not those of the synchronous run without latency. CRCG/cloud is timed at the cloud.
accepted: share of the drafts that were committed; expected: by the draft rule's formula. forwards: of each decoder.
lost: decode time of drafts that were thrown away. frames: bytes of Tandem's frames by sender; of DRCG and DRDG/SW what
was sent instead. data, ray: bytes on the link by sender, headers and acknowledgements included, on the data connection
and on all of Ray's. share: of the frames in both."""
WIDTH = 120


def text_of(cells: Sequence[Cell]) -> str:
    """Everything, for a person."""
    lines = (line for cell in cells for line in cell_lines(cell, cells))
    compared = side_by_side(cells, rows_of, _figures)
    return "\n".join([*lines, *compared, LEGEND, "", *_explain_systems(cells)])


def _figures(row: Row) -> Figures:
    up, down = (row.wire_bytes[party].get("data", nan) for party in PARTIES)
    return Figures(
        token_s=row.token_s, first_s=row.ttft_s, up_bytes=up, down_bytes=down, num_wrong=row.num_wrong
    )


def _explain_systems(cells: Sequence[Cell]) -> Iterator[str]:
    """What each system of the table does, and where the paper has it."""
    for name in dict.fromkeys(name for cell in cells for name in rows_of(cell)):
        system = BY_NAME[name]
        where = f" (DRAGON {system.dragon})" if system.dragon else ""
        yield textwrap.fill(f"{name:25} {system.what}{where}", WIDTH, subsequent_indent=" " * 26)


def cell_lines(cell: Cell, cells: Sequence[Cell]) -> Iterator[str]:
    """One cell: its setting, what ping saw, a row for each system, its checks."""
    rows = rows_of(cell)
    runs = cell.plan.get("runs", "?")
    stores = "/".join(cell.plan.get("kv_store", "?"))
    yield f"{cell.setting}, {runs} runs of {cell.plan.get('questions', '?')} questions, caches of documents {stores}"
    yield f"ping {_ping(cell)}"
    yield TIMES
    yield from (_time_line(row, rows, cell) for row in rows.values())
    yield ""
    yield COSTS
    yield from map(_cost_line, rows.values())
    for check in checks_of(cell, cells):
        yield textwrap.fill(f"  {check}", WIDTH, subsequent_indent=" " * 6)
    yield ""


def values_of(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Everything but the records, for a script."""
    return [
        {
            "setting": asdict(cell.setting),
            "plan": cell.plan,
            "ping_median_s": median(cell.ping_s) if cell.ping_s else None,
            "num_pings": len(cell.ping_s),
            "idle_bytes_per_s": cell.idle_bytes_per_s,
            "rows": [
                asdict(row) | {"predicted_s": cell.predicted_s.get(name)}
                for name, row in rows_of(cell).items()
            ],
            "predicted_speedup": cell.predicted_speedup,
            "checks": [asdict(check) for check in checks_of(cell, cells)],
        }
        for cell in cells
    ]


def _time_line(row: Row, rows: dict[str, Row], cell: Cell) -> str:
    device, token_wise = rows.get(DEVICE_ONLY.name), rows.get(TOKEN_WISE.name)
    ratio = row.token_s / device.token_s if device else float("nan")
    below = row.token_s / token_wise.token_s - 1 if token_wise else float("nan")
    wrong = "" if row.num_wrong is None else str(row.num_wrong)
    spread = f"{_ms(row.token_s_p25)}-{_ms(row.token_s_p75)}" if row.num_runs > 1 else "-"  # of one run: none
    return (
        f"{row.system:25} {_ms(row.token_s):>8} {spread:>13} {_ms(cell.predicted_s.get(row.system)):>9} "
        f"{_number(ratio, '.2f'):>7} {_number(below, '+.0%'):>6} {_ms(row.ttft_s):>7} {row.tokens_per_s:>5.1f}  "
        f"{_ms(row.waited_s):>6}  {wrong}"
    ).rstrip()


def _cost_line(row: Row) -> str:
    return (
        f"{row.system:25} {_pair(row.acceptance, '.2f'):>9} {_pair(row.expected_acceptance, '.2f'):>9} "
        f"{_pair(row.forwards_per_token, '.2f'):>9} {_pair(row.lost_s, '.1f', 1e3):>9} "
        f"{_pair(row.cpu_s, '.0f', 1e3):>9} {_pair(row.frame_bytes, '.0f'):>11} "
        f"{_wire(row, 'data'):>11} {_wire(row, 'ray'):>11} {_number(row.frame_share, '.0%'):>5}"
    )


def _wire(row: Row, port: str) -> str:
    seen = {party: row.wire_bytes[party].get(port, float("nan")) for party in PARTIES}
    return _pair(seen, ".0f")


def _ping(cell: Cell) -> str:
    if not cell.ping_s:
        return "not seen"
    return f"{1e3 * median(cell.ping_s):.1f} ms (median of {len(cell.ping_s)})"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else _number(1e3 * seconds, ".1f")


def _pair(values: dict[Any, float], form: str, factor: float = 1.0) -> str:
    return "/".join(_number(factor * values[party], form) for party in PARTIES)


def _number(value: float, form: str) -> str:
    return format(value, form) if isfinite(value) else "-"
