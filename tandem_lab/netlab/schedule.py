"""Traces: how a link changes over time, from CSV or bundled, and what plays one on a network.

`delay_ms` is the round trip that is added, as `--rtt` is: half of it each way. Knows no network beyond the one call
that shapes it, and reads no clock: who plays a trace brings the time.
"""

from __future__ import annotations

import csv
import io
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from tandem.errors import nearest
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


# ---- The traces that come with Tandem: computed, not stored ------------------------------------------------------


RTTS_MS = (50, 100, 200, 300)
"""The RTTs of DRAGON's Figures 6 and 7, besides 0."""
SHARE = 0.2
"""Jitter and amplitude as a share of the RTT: 1/5, DRAGON 7.3 and 7.4."""
PERIOD_S = 20 * math.pi
"""Of the sinusoid, DRAGON 7.4."""
NUM_PERIODS = 4
SINUSOID_STEP_S = 0.5
RANDOM_S = 300
OUTAGE_S = (20.0, 30.0, 60.0)
"""When the link goes away, when it is back, when the trace ends."""

# FlexSpec, Table I: 5G mid-band, 4G LTE, public WiFi. NOT in the paper, which has rates only: RTT, jitter and loss are
# what such links usually show.
_MOBILE = {
    "5g": Shape(rtt_s=0.020, jitter_s=0.004, rate_bits_per_s=300e6),
    "4g": Shape(rtt_s=0.050, jitter_s=0.010, rate_bits_per_s=50e6),
    "weak-wifi": Shape(rtt_s=0.100, jitter_s=0.020, rate_bits_per_s=10e6, loss=0.01),
}
_WALK = ("5g", "4g", "weak-wifi", "4g", "5g", "5g")
_WALK_STEP_S = 20.0

Rows = Iterable[tuple[float, Shape]]
"""When, and the shape from then on."""


def _redrawn(rtt_s: float) -> Rows:
    """Every second a new RTT, uniform within 1/5 of the middle one."""
    rng = random.Random(1)
    return [(float(second), Shape(rtt_s=_swung(rtt_s, rng.uniform(-1, 1)))) for second in range(RANDOM_S)]


def _sinusoid(rtt_s: float) -> Rows:
    """RTT (1 + sin(2 pi t / T) / 5) with T = 20 pi s, over four periods; DRAGON 7.4."""
    num_rows = math.ceil(NUM_PERIODS * PERIOD_S / SINUSOID_STEP_S) + 1
    times_s = [row * SINUSOID_STEP_S for row in range(num_rows)]
    return [(at_s, Shape(rtt_s=_swung(rtt_s, math.sin(2 * math.pi * at_s / PERIOD_S)))) for at_s in times_s]


def _swung(rtt_s: float, swing: float) -> float:
    return rtt_s * (1 + SHARE * swing)


def _outage(rtt_s: float) -> Rows:
    """The link goes away after 20 s, loses everything for 10 s, and returns."""
    there, gone = Shape(rtt_s=rtt_s), Shape(rtt_s=rtt_s, loss=1.0)
    return zip((0.0, *OUTAGE_S), (there, gone, there, there), strict=True)


_FAMILIES: dict[str, Callable[[float], Rows]] = {
    "constant": lambda rtt_s: [(0.0, Shape(rtt_s=rtt_s))],
    # each packet with its own jitter of 1/5, as DRAGON 7.3 injects it
    "jitter": lambda rtt_s: [(0.0, Shape(rtt_s=rtt_s, jitter_s=rtt_s / 5))],
    "random": _redrawn,
    "sinusoid": _sinusoid,
    "outage": _outage,
}


def bundled_names() -> list[str]:
    """The names that `bundled` takes."""
    families = [f"{family}-{rtt}" for family in _FAMILIES for rtt in RTTS_MS]
    return ["constant-0", *families, *_MOBILE, "walk"]


def bundled(name: str) -> LinkSchedule:
    """A trace by its name. Raises NetLabError that names the nearest."""
    if name not in bundled_names():
        raise NetLabError(
            f"{name!r} is neither a bundled trace nor a file; the nearest bundled one is "
            f"{nearest(name, bundled_names())!r}, of {', '.join(bundled_names())}."
        )
    family, _, rtt_ms = name.partition("-")
    if name in _MOBILE:
        rows: Rows = [(0.0, _MOBILE[name])]
    elif family in _FAMILIES:
        rows = _FAMILIES[family](float(rtt_ms) / 1e3)
    else:  # out of a 5G cell through 4G into a weak WiFi and back
        rows = [(_WALK_STEP_S * number, _MOBILE[link]) for number, link in enumerate(_WALK)]
    return LinkSchedule(name, tuple(ScheduleRow(at_s, shape) for at_s, shape in rows))
