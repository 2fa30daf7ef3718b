"""One suite of the benchmark: its systems and grid, its rows, tables and promises. Three of them fill it in.

A row is one system in one cell: medians over runs, and sums per token. What differs between suites is which systems
run, over which grid, what is predicted, which columns a table has, and what must hold.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, Protocol

from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem.topology import PARTIES
from tandem_lab.bench.plan import CellPlan, in_turns, informative_at
from tandem_lab.bench.records import Cell, Deployment, Models, Prediction, Record, Setting
from tandem_lab.bench.systems import System, select_systems
from tandem_lab.numbers import median_of, ratio

WIDTH = 120
"""Columns of what a person reads."""
NAME_WIDTH = 25
"""Of a system's name."""


# ---- A row -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system in one setting. Quantities are medians over runs, or sums over all runs per token. nan: not known.

    What is by party has the names of the topology; what crosses the link is by the host that sends, "device" (which in
    mode "federated" has the server) or "cloud" (all workers).
    """

    system: str
    token_s: float  # see `pace_s`
    token_s_p25: float
    token_s_p75: float
    first_s: float  # median over all questions of all runs
    num_runs: int
    num_tokens: int  # of all runs
    tokens_per_s: float  # from the question to the last token
    accepted: dict[str, float]  # share of the tokens that a party had drafted
    expected: dict[str, float]  # by the formula of the draft rule
    forwards: dict[str, float]  # of each party's decoder
    lost_s: dict[str, float]  # decode time of drafts that were thrown away
    waited_s: float  # for the link
    cpu_s: dict[str, float]  # by party
    frame_bytes: dict[str, float]
    bytes_per_frame: dict[str, float]
    wire_bytes: dict[str, dict[str, float]]  # by connection: "data", "ray", "other"
    waited_for: dict[str, float]  # by worker: share of the tokens for which its vote came last
    num_resyncs: int
    num_wrong: int | None  # tokens that are not those of the draft-free loop; None: they need not be
    prediction: Prediction

    @property
    def predicted_s(self) -> float:
        """Time per token."""
        return self.prediction.token_s

    @property
    def deviation(self) -> float:
        """Of the measured time per token from the predicted one, as a share."""
        return self.token_s / self.predicted_s - 1.0

    @property
    def frame_share(self) -> float:
        """Of Tandem's frames in all bytes on TCP connections while somebody was asking."""
        on_wire = sum(ports.get("data", 0.0) + ports.get("ray", 0.0) for ports in self.wire_bytes.values())
        return ratio(sum(self.frame_bytes.values()), on_wire)

    def data_bytes(self, sender: str) -> float:
        """On the data connection, with headers and acknowledgements; nan where nothing was captured."""
        return self.wire_bytes.get(sender, {}).get("data", nan)


def row_of(cell: Cell, system: System) -> Row:
    """What the records of one system say. There must be one at least."""
    records = cell.of(system.name)
    runs = [[each for each in records if each.run == run] for run in sorted({each.run for each in records})]
    paces = [pace_s(run) for run in runs]
    p25, _, p75 = quantiles(paces, n=4, method="inclusive") if len(paces) > 1 else paces * 3
    num_tokens = sum(each.num_tokens for each in records)
    last = _sums((each.waited_for for each in records), 0.0)
    frame_bytes, num_frames = (
        _sums(getattr(each, name) for each in records) for name in ("frame_bytes", "num_frames")
    )

    def per_token(name: str) -> dict[str, float]:
        return {
            party: value / num_tokens
            for party, value in _sums(getattr(each, name) for each in records).items()
        }

    parties = sorted({party for each in records for party in each.num_forwards})
    return Row(
        system=system.name,
        token_s=median_of(paces),
        token_s_p25=p25,
        token_s_p75=p75,
        first_s=median(each.ttft_s for each in records),
        num_runs=len(runs),
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / sum(each.committed_s[-1] for each in records),
        accepted=per_token("num_accepted"),
        expected=_means(each.expected_acceptance for each in records),
        forwards=per_token("num_forwards"),
        lost_s={party: sum(each.lost_s(party) for each in records) / num_tokens for party in parties},
        waited_s=sum(each.waited_s for each in records) / num_tokens,
        cpu_s=_by_party(_sums((each.cpu_s for each in records), 0.0), num_tokens),
        frame_bytes=per_token("frame_bytes"),
        bytes_per_frame={
            sender: ratio(value, num_frames.get(sender, 0.0)) for sender, value in frame_bytes.items()
        },
        wire_bytes={
            str(sender): {
                port: value / num_tokens
                for port, value in _sums(each.wire_bytes.get(sender, {}) for each in records).items()
            }
            for sender in PARTIES
        },
        waited_for={name: ratio(last.get(name, 0.0), sum(last.values())) for name in cell.setting.workers},
        num_resyncs=sum(each.num_resyncs for each in records),
        num_wrong=num_wrong(records, cell.reference) if system.is_seed_deterministic else None,
        prediction=cell.predictions.get(system.name, Prediction(token_s=nan)),
    )


def pace_s(records: Sequence[Record]) -> float:
    """Seconds per token of one run, after the tokens of the first verdict, or since the first draft where that is told.

    nan if no answer has a token more.
    """
    span_s, num_later = 0.0, 0
    for each in records:
        is_drafted = isfinite(each.drafted_s)
        later = each.num_tokens - 1 if is_drafted else sum(at_s > each.ttft_s for at_s in each.committed_s)
        if later > 0:
            span_s, num_later = span_s + each.span_s, num_later + later
    return ratio(span_s, num_later)


def num_wrong(records: Iterable[Record], reference: Sequence[Sequence[int]]) -> int:
    """Positions at which an answer is not the reference's: another token, one too many, or one that is missing."""
    count = 0
    for each in records:
        wanted = reference[each.question]
        count += abs(len(wanted) - each.num_tokens)
        count += sum(one != other for one, other in zip(wanted, each.token_ids, strict=False))
    return count


def _sums(values: Iterable[Mapping[str, float]], missing: float = nan) -> dict[str, float]:
    """By key. missing: what a record counts that does not know a key; nan: then nothing is known of the sum."""
    kept = list(values)
    keys = dict.fromkeys(key for each in kept for key in each)
    return {str(key): float(sum(each.get(key, missing) for each in kept)) for key in keys}


def _means(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
    kept = list(values)
    keys = dict.fromkeys(key for each in kept for key in each)
    known = {key: [each[key] for each in kept if isfinite(each.get(key, nan))] for key in keys}
    return {str(key): fmean(each) for key, each in known.items() if each}


def _by_party(by_actor: Mapping[str, float], num_tokens: int) -> dict[str, float]:
    """Per token."""
    found: dict[str, float] = {}
    for actor, value in by_actor.items():
        party = actor.partition("/")[0]
        found[party] = found.get(party, 0.0) + value / num_tokens
    return found


# ---- What a suite promises and shows -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise in one setting."""

    promise: str
    numbers: str
    holds: bool | None  # None: reported only

    def __str__(self) -> str:
        verdict = {True: "yes", False: "NO", None: "--"}[self.holds]
        return f"{verdict:>3}  {self.promise}: {self.numbers}"


def exactness(rows: Mapping[str, Row], wanted: str) -> Iterator[Check]:
    """What every suite promises of coupled drafts. wanted: whose tokens, in words."""
    for name, row in rows.items():
        if row.num_wrong is not None:
            yield Check(
                promise=f"{name} commits {wanted}",
                numbers=f"{row.num_wrong} of {row.num_tokens} wrong",
                holds=row.num_wrong == 0,
            )


def agreement(rows: Mapping[str, Row], limit: float) -> Iterator[Check]:
    """Of the systems whose tokens, and so whose acceptance, are known beforehand."""
    seen = [row for row in rows.values() if row.num_wrong is not None and isfinite(row.deviation)]
    if seen:
        worst = max(seen, key=lambda row: abs(row.deviation))
        yield Check(
            promise=f"times per token are within {limit:.0%} of the prediction",
            numbers=f"furthest: {worst.system}, {worst.deviation:+.0%}",
            holds=abs(worst.deviation) <= limit,
        )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. of: text of a row, all rows of its cell by system, and that cell."""

    title: str
    width: int
    of: Callable[[Row, Mapping[str, Row], Cell], str]


def shown(value: float, form: str) -> str:
    """As text; a dash where it is not known."""
    return format(value, form) if isfinite(value) else "-"


def ms(seconds: float, form: str = ".1f") -> str:
    """Milliseconds as text."""
    return shown(1e3 * seconds, form)


def value(title: str, width: int, form: str, of: Callable[[Row], float]) -> Column:
    """One number of a row."""
    return Column(title, width, lambda row, rows, cell: shown(of(row), form))


def told(title: str, width: int, form: str, name: str, factor: float = 1.0) -> Column:
    """A further quantity of its prediction."""
    return value(title, width, form, lambda row: factor * row.prediction.also.get(name, nan))


def both(
    title: str, form: str, of: Callable[[Row], float], predicted: Callable[[Prediction], float]
) -> Column:
    """Measured and predicted."""
    return Column(
        title, 11, lambda row, rows, cell: f"{shown(of(row), form)}/{shown(predicted(row.prediction), form)}"
    )


def forwards(title: str, party: str) -> Column:
    """Of a party's decoder, measured and predicted."""
    return both(
        title, ".2f", lambda row: row.forwards.get(party, nan), lambda told: told.forwards.get(party, nan)
    )


WRONG = Column("wrong", 5, lambda row, rows, cell: "" if row.num_wrong is None else str(row.num_wrong))
PACE = value("ms/token", 8, ".1f", lambda row: 1e3 * row.token_s)
PREDICTED = value("predicted", 9, ".1f", lambda row: 1e3 * row.predicted_s)
OFF = value("off", 5, "+.0%", lambda row: row.deviation)
FIRST = value("TTFT ms", 7, ".0f", lambda row: 1e3 * row.first_s)


# ---- A grid ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A grid, or the part of one that a command line names; empty: what the suite has there."""

    rtts_s: tuple[float, ...] = ()
    rates: tuple[float | None, ...] = ()  # bits per second; None: no limit
    temperatures: tuple[float, ...] = ()
    floors: tuple[tuple[float, float] | None, ...] = ()
    workers: tuple[int, ...] = ()  # 0: a device and a cloud
    slow: tuple[float, ...] = ()
    systems: tuple[str, ...] = ()
    models: Models | None = None

    def over(self, basis: Axes) -> Axes:
        """With what `basis` has where this is empty."""
        named = {name: value for name in self.__slots__ if (value := getattr(self, name))}
        return replace(basis, **named)


class Predicts(Protocol):
    """Says what should come out of a benchmark, before anybody measures."""

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        """The tokens of each question without a link, coupled drafts."""

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system."""


Checks = Callable[[Cell, Mapping[str, Row]], Iterable[Check]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All that one suite adds to the benchmark."""

    name: str
    page: str  # where its systems are explained
    systems: tuple[System, ...]
    warm_up: System  # asked first, so that stores are filled
    axes: Mapping[
        Models, Axes
    ]  # the grid of each kind of models; the first is what is meant if none is named
    smoke: Axes
    max_new_tokens: int
    runs: int
    takes: frozenset[str]  # options that not every suite has
    configure: Callable[[Config], Config]
    predict: Callable[[Config, Sequence[str]], Predicts]
    tables: tuple[tuple[Column, ...], ...]  # one below the other
    legend: str
    checks: Checks
    draw: Callable[[Suite, Sequence[Cell], Path], None]
    pictures: tuple[str, ...]
    full: Callable[[Suite], tuple[CellPlan, ...]] | None = None  # where nothing is named; None: `axes`
    calibration: tuple[System, ...] = ()  # measured without a delay before anything is predicted

    def cells(
        self, named: Axes, deployments: Sequence[Deployment], *, is_smoke: bool
    ) -> tuple[CellPlan, ...]:
        """What is to be measured. Raises TandemError."""
        if self.full is not None and not is_smoke and named == Axes() and not deployments:
            return self.full(self)
        models = next(iter(self.axes)) if named.models is None else named.models
        basis = self.axes[models]
        axes = named.over(self.smoke.over(basis) if is_smoke else basis)
        return in_turns(self._grid(axes, models), deployments or ("ray",))

    def _grid(self, axes: Axes, models: Models) -> Iterator[CellPlan]:
        systems = select_systems(axes.systems, self.systems, self.page) if axes.systems else self.systems
        grid = product(axes.floors, axes.workers, axes.slow, axes.rates, axes.rtts_s, axes.temperatures)
        for floors_s, num_workers, slow, bits_per_s, rtt_s, temperature in grid:
            setting = Setting(
                floors_s=floors_s,
                rtt_s=rtt_s,
                temperature=temperature,
                max_new_tokens=self.max_new_tokens,
                models=models,
                bits_per_s=bits_per_s,
                num_workers=num_workers,
                slow=slow,
            )
            left = informative_at(systems, temperature)
            if not left:
                raise TandemError(
                    "Algorithm 1 draws only above temperature 0, but nothing else is to be measured at 0; "
                    "add --temperature 1, or another system."
                )
            yield CellPlan(setting=setting, systems=left)

    # ---- what came out ---------------------------------------------------------------------------------------

    def rows_of(self, cell: Cell) -> dict[str, Row]:
        """A row of every system that was measured, in the order of the table."""
        seen = {record.system for record in cell.records}
        return {system.name: row_of(cell, system) for system in self.systems if system.name in seen}

    def checks_of(self, cell: Cell) -> list[Check]:
        """All promises for one setting."""
        return list(self.checks(cell, self.rows_of(cell)))

    def text_of(self, cells: Sequence[Cell]) -> str:
        """Everything, for a person."""
        lines = [line for cell in cells for line in self._cell_lines(cell)]
        seen = {record.system for cell in cells for record in cell.records}
        explained = (_explained(system) for system in self.systems if system.name in seen)
        return "\n".join([*lines, self.legend, "", *explained])

    def values_of(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Everything but the records, for a script."""
        return [
            {
                "setting": asdict(cell.setting),
                "plan": cell.plan,
                "ping_median_s": median(cell.ping_s) if cell.ping_s else None,
                "idle_bytes_per_s": cell.idle_bytes_per_s,
                "rows": [asdict(row) for row in self.rows_of(cell).values()],
                "checks": [asdict(check) for check in self.checks_of(cell)],
            }
            for cell in cells
        ]

    def _cell_lines(self, cell: Cell) -> Iterator[str]:
        rows, plan = self.rows_of(cell), cell.plan
        stores = "/".join(plan.get("kv_store", "?"))
        yield (
            f"{cell.setting}, {plan.get('runs', '?')} runs of {plan.get('questions', '?')} questions, caches of "
            f"documents {stores}"
        )
        if cell.ping_s:
            yield f"ping {ms(median(cell.ping_s))} ms (median of {len(cell.ping_s)})"
        for table in self.tables:
            yield _line("system", (column.title for column in table), table)
            for row in rows.values():
                yield _line(row.system, (column.of(row, rows, cell) for column in table), table)
            yield ""
        for check in self.checks_of(cell):
            yield textwrap.fill(f"  {check}", WIDTH, subsequent_indent=" " * 6)
        yield ""


def _line(name: str, texts: Iterable[str], table: Sequence[Column]) -> str:
    cells = (f"{text:>{column.width}}" for text, column in zip(texts, table, strict=True))
    return f"{name:{NAME_WIDTH}} {' '.join(cells)}".rstrip()


def _explained(system: System) -> str:
    """What a system does, and where the paper has it."""
    where = f" (DRAGON {system.dragon})" if system.dragon else ""
    indent = " " * (NAME_WIDTH + 1)
    return textwrap.fill(f"{system.name:{NAME_WIDTH}} {system.what}{where}", WIDTH, subsequent_indent=indent)
