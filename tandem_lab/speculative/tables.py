"""Cells as text for a person and as plain values for a script."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from statistics import median
from typing import Any

from tandem_lab.latency.records import Cell
from tandem_lab.latency.side_by_side import Figures, side_by_side
from tandem_lab.latency.systems import System
from tandem_lab.speculative.rows import Row, checks_of, deviation, rows_of
from tandem_lab.speculative.systems import SYSTEMS

HEADER = (
    f"{'system':24} {'ms/token':>8} {'predicted':>9} {'off':>5} {'TTFT ms':>7} {'least':>6} {'accepted':>8} "
    f"{'passes':>11} {'drafts':>11} {'up B':>11} {'down B':>11}  wrong"
)
LEGEND = """\
Measured/predicted; all but TTFT is a token. ms/token: after the tokens of the first frame, median of runs.
least: the predicted first token, without retrieval and prefill. accepted: share of the committed tokens that were
proposed. passes: forwards of the cloud; drafts: of the device. up, down: bytes on the data connection by sender, with
headers and acknowledgements. wrong: tokens that are not those of the cloud alone with the same seed."""
WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """How the cells of one benchmark are shown."""

    header: str
    legend: str
    name_width: int  # of a system's name, in characters
    systems: Sequence[System]
    rows_of: Callable[[Cell], Mapping[str, Any]]  # by system; dataclasses
    checks_of: Callable[[Cell], Iterable[Any]]
    line: Callable[[Any], str]  # of a row
    figures_of: Callable[[Any], Figures] | None = (
        None  # of a row, to compare deployments; None: there is but one
    )

    def text_of(self, cells: Sequence[Cell]) -> str:
        """Everything, for a person."""
        lines = [line for cell in cells for line in self.cell_lines(cell)]
        seen = {record.system for cell in cells for record in cell.records}
        indent = " " * (self.name_width + 1)
        explained = (
            textwrap.fill(f"{system.name:{self.name_width}} {system.what}", WIDTH, subsequent_indent=indent)
            for system in self.systems
            if system.name in seen
        )
        compared = side_by_side(cells, self.rows_of, self.figures_of) if self.figures_of else ()
        return "\n".join([*lines, *compared, self.legend, "", *explained])

    def cell_lines(self, cell: Cell) -> Iterator[str]:
        """One cell: its setting, a row for each system, its checks."""
        plan = cell.plan
        yield f"{cell.setting}, {plan.get('runs', '?')} runs of {plan.get('questions', '?')} questions"
        if cell.ping_s:
            yield f"ping {1e3 * median(cell.ping_s):.1f} ms (median of {len(cell.ping_s)})"
        yield self.header
        yield from map(self.line, self.rows_of(cell).values())
        for check in self.checks_of(cell):
            yield textwrap.fill(f"  {check}", WIDTH, subsequent_indent=" " * 6)
        yield ""

    def values_of(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Everything but the records, for a script."""
        return [
            {
                "setting": asdict(cell.setting),
                "plan": cell.plan,
                "ping_median_s": median(cell.ping_s) if cell.ping_s else None,
                "rows": [asdict(row) for row in self.rows_of(cell).values()],
                "checks": [asdict(check) for check in self.checks_of(cell)],
            }
            for cell in cells
        ]


def _line(row: Row) -> str:
    wrong = "" if row.num_wrong is None else str(row.num_wrong)
    off = shown(deviation(row), "+.0%") if isfinite(row.predicted_s) else "-"
    return (
        f"{row.system:24} {shown(1e3 * row.token_s, '.1f'):>8} {shown(1e3 * row.predicted_s, '.1f'):>9} {off:>5} "
        f"{shown(1e3 * row.first_s, '.0f'):>7} {shown(1e3 * row.predicted.get('first_s', nan), '.0f'):>6} "
        f"{row.accepted:>8.2f} {_both(row, 'passes', '.2f'):>11} {_both(row, 'drafts', '.2f'):>11} "
        f"{_both(row, 'up_bytes', '.0f'):>11} {_both(row, 'down_bytes', '.0f'):>11}  {wrong}"
    ).rstrip()


def _both(row: Row, name: str, form: str) -> str:
    return f"{shown(getattr(row, name), form)}/{shown(row.predicted.get(name, nan), form)}"


def shown(value: float, form: str) -> str:
    """As text; a dash where it is not known."""
    return format(value, form) if isfinite(value) else "-"


def _figures(row: Row) -> Figures:
    return Figures(
        token_s=row.token_s,
        first_s=row.first_s,
        up_bytes=row.up_bytes,
        down_bytes=row.down_bytes,
        num_wrong=row.num_wrong,
    )


TABLES = Tables(
    header=HEADER,
    legend=LEGEND,
    name_width=24,
    systems=SYSTEMS,
    rows_of=rows_of,
    checks_of=checks_of,
    line=_line,
    figures_of=_figures,
)
text_of, values_of = TABLES.text_of, TABLES.values_of
