"""Traces: how a link changes over time, as CSV, and what plays one on a network.

`delay_ms` is the round trip that is added, as `--rtt` is: half of it each way. Knows no network beyond the one call
that shapes it, and reads no clock: who plays a trace brings the time.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.shape import Shape

FIELDS = ("time_s", "delay_ms", "jitter_ms", "rate_mbit", "loss_pct")
_HEADER = ",".join(FIELDS)
_UNIT = {
    "time_s": "seconds",
    "delay_ms": "ms",
    "jitter_ms": "ms",
    "rate_mbit": "Mbit/s",
    "loss_pct": "percent",
}


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """From this moment on the link has this shape."""

    time_s: float  # since the trace began
    shape: Shape


@dataclass(frozen=True, slots=True)
class LinkSchedule:
    """A link over time: at least one row, the first at 0 s, times ascending. Raises NetLabError otherwise."""

    name: str
    rows: tuple[ScheduleRow, ...]

    def __post_init__(self) -> None:
        times = [row.time_s for row in self.rows]
        if not times or times[0] != 0 or any(later <= earlier for earlier, later in pairwise(times)):
            raise NetLabError(
                f"A trace begins at 0 s and its times ascend, but {self.name} does not; give each moment one row."
            )

    @property
    def end_s(self) -> float:
        """When it changes the link for the last time."""
        return self.rows[-1].time_s

    def value_at(self, time_s: float) -> Shape:
        """The link's shape at a moment. Past the end the last one holds."""
        index = bisect_right(self.rows, time_s, key=lambda row: row.time_s) - 1
        return self.rows[max(index, 0)].shape

    def note_at(self, time_s: float) -> str:
        """One sentence for a person if the trace has ended by then; empty if it continues, or never changes."""
        if len(self.rows) == 1 or time_s <= self.end_s:
            return ""
        return (
            f"The trace {self.name} ended at {self.end_s:g} s; its last value holds: {self.rows[-1].shape}."
        )


class Shapeable(Protocol):
    """A network, as far as a trace cares."""

    def shape(self, shape: Shape) -> None:
        """Changes the link at once."""


def play(
    lab: Shapeable,
    trace: LinkSchedule,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    is_stopped: Callable[[], bool] = lambda: False,
    longest_nap_s: float = 0.1,
) -> Iterator[ScheduleRow]:
    """Applies a trace in time, from now on; yields each row as it was really applied, by the clock since the start.

    A row whose successor is due already is left out: late shapes would only delay the right one. Ends after the last
    row, or within longest_nap_s of `is_stopped` coming true.
    """
    start_s = clock()
    index = -1
    while index + 1 < len(trace.rows) and not is_stopped():
        wait_s = trace.rows[index + 1].time_s - (clock() - start_s)
        if wait_s > 0:
            sleep(min(wait_s, longest_nap_s))
            continue
        index = bisect_right(trace.rows, clock() - start_s, key=lambda row: row.time_s) - 1
        lab.shape(trace.rows[index].shape)
        yield ScheduleRow(clock() - start_s, trace.rows[index].shape)


# ---- CSV -----------------------------------------------------------------------------------------------------


def read_schedule(path: Path) -> LinkSchedule:
    """Reads a trace. Raises NetLabError with file, line, field and what was expected."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NetLabError(
            f"A trace is a CSV file that begins with {_HEADER}, but {path} cannot be read: {error}"
        ) from error
    return parse_schedule(text, str(path))


def parse_schedule(text: str, name: str) -> LinkSchedule:
    """A trace from CSV text; `name` stands for the file in errors. Raises NetLabError."""
    lines = list(csv.reader(io.StringIO(text)))
    if not lines or tuple(word.strip() for word in lines[0]) != FIELDS:
        seen = ",".join(lines[0]) if lines else "an empty file"
        raise NetLabError(f"{name}, line 1: a trace begins with the header {_HEADER}, but this is {seen!r}.")
    rows: list[ScheduleRow] = []
    for number, words in enumerate(lines[1:], start=2):
        if not words:
            continue
        row = _row(words, f"{name}, line {number}")
        _check_time(row, rows, f"{name}, line {number}")
        rows.append(row)
    if not rows:
        raise NetLabError(
            f"{name}, line 2: a trace has at least one row below its header, but there is none."
        )
    return LinkSchedule(name, tuple(rows))


def _row(words: Sequence[str], where: str) -> ScheduleRow:
    if len(words) != len(FIELDS):
        raise NetLabError(
            f"{where}: a row has {len(FIELDS)} fields, {_HEADER}, but this one has {len(words)}."
        )
    values = {field: _number(word, field, where) for field, word in zip(FIELDS, words, strict=True)}
    rate = values["rate_mbit"]
    try:
        shape = Shape(
            rtt_s=(values["delay_ms"] or 0.0) / 1e3,
            jitter_s=(values["jitter_ms"] or 0.0) / 1e3,
            rate_bits_per_s=None if rate is None else rate * 1e6,
            loss=(values["loss_pct"] or 0.0) / 100,
        )
    except NetLabError as error:
        raise NetLabError(f"{where}: {error}") from error
    return ScheduleRow(values["time_s"] or 0.0, shape)


def _number(word: str, field: str, where: str) -> float | None:
    """A field's value; None for an empty rate, which means no limit."""
    if field == "rate_mbit" and not word.strip():
        return None
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        hint = ", or nothing for no limit" if field == "rate_mbit" else ""
        raise NetLabError(
            f"{where}, field {field}: expected a number of {_UNIT[field]} of at least 0{hint}, but it is {word!r}."
        )
    return value


def _check_time(row: ScheduleRow, earlier: list[ScheduleRow], where: str) -> None:
    if not earlier and row.time_s != 0:
        raise NetLabError(f"{where}, field time_s: expected 0 in the first row, but it is {row.time_s:g}.")
    if earlier and row.time_s <= earlier[-1].time_s:
        raise NetLabError(
            f"{where}, field time_s: expected more than {earlier[-1].time_s:g}, the time of the row above, "
            f"but it is {row.time_s:g}."
        )


def format_schedule(trace: LinkSchedule) -> str:
    """A trace as CSV text."""
    lines = [_HEADER]
    for row in trace.rows:
        shape = row.shape
        rate = "" if shape.rate_bits_per_s is None else _short(shape.rate_bits_per_s / 1e6)
        delay, jitter = _short(1e3 * shape.rtt_s), _short(1e3 * shape.jitter_s)
        lines.append(",".join([_short(row.time_s), delay, jitter, rate, _short(100 * shape.loss)]))
    return "\n".join([*lines, ""])


def write_schedule(trace: LinkSchedule, path: Path) -> None:
    """Writes a trace as CSV."""
    path.write_text(format_schedule(trace), "utf-8")


def _short(value: float) -> str:
    """A number to 9 digits: better than a nanosecond for every delay."""
    return f"{value:.9g}"
