"""One system in one setting as a line of a table, and what must hold. Knows records; writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median

from tandem.topology import Party
from tandem_lab.latency.checks import Check
from tandem_lab.latency.records import Cell, Record
from tandem_lab.latency.rows import num_wrong
from tandem_lab.numbers import median_of, ratio
from tandem_lab.simulation.conditions import pace_s
from tandem_lab.speculative.systems import ASKED, STREAMED, SYSTEMS

SPEED_ACCEPTANCE = 0.85
"""Steps at which the device's token is the cloud's, from which share on the speed-ups below are asked for."""
SPEEDUPS = {0.1: 2.0, 0.3: 3.0}
"""By round trip in seconds: time per token of asking for each, over that of the pipelined device, at least."""
GOES_ON, AGREEMENT = 1.05, 0.10
"""Time per token over that of the streamed cloud, at most; and deviation from the prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system in one setting: medians over runs, or sums over all runs a token. nan: not known."""

    system: str
    token_s: float  # after the tokens of the first frame
    first_s: float
    num_runs: int
    num_tokens: int  # of all runs
    accepted: float  # share of the committed tokens that were proposed
    drafts: float  # forwards of the device
    passes: float  # of the cloud
    up_bytes: float  # on the data connection, with headers and acknowledgements
    down_bytes: float
    num_wrong: int | None  # tokens that are not the cloud's own; None: they need not be
    predicted_s: float
    predicted: Mapping[str, float]  # accepted, passes, up_bytes, ...


def rows_of(cell: Cell) -> dict[str, Row]:
    """A row of every system that was measured, in the order of the table."""
    seen = {record.system for record in cell.records}
    return {system.name: _row(cell, system.name) for system in SYSTEMS if system.name in seen}


def _row(cell: Cell, system: str) -> Row:
    records = cell.of(system)
    runs = [[each for each in records if each.run == run] for run in sorted({each.run for each in records})]
    num_tokens = sum(each.num_tokens for each in records)
    is_exact = next(each for each in SYSTEMS if each.name == system).is_seed_deterministic
    forwards = cell.predicted_forwards.get(system, {})
    return Row(
        system=system,
        token_s=median_of([pace_s([each.committed_s for each in run]) for run in runs]),
        first_s=median(each.ttft_s for each in records),
        num_runs=len(runs),
        num_tokens=num_tokens,
        accepted=ratio(sum(each.num_accepted.get("device", 0) for each in records), num_tokens),
        drafts=ratio(sum(each.num_forwards.get("device", 0) for each in records), num_tokens),
        passes=ratio(sum(each.num_forwards.get("cloud", 0) for each in records), num_tokens),
        up_bytes=_wire_bytes(records, Party.DEVICE, num_tokens),
        down_bytes=_wire_bytes(records, Party.CLOUD, num_tokens),
        num_wrong=num_wrong(records, cell.reference) if is_exact else None,
        predicted_s=cell.predicted_s.get(system, nan),
        predicted=dict(cell.predicted_also.get(system, {}))
        | {"passes": forwards.get("cloud", nan), "drafts": forwards.get("device", nan)},
    )


def _wire_bytes(records: Iterable[Record], party: Party, num_tokens: int) -> float:
    """A token, by sender; nan where nothing was captured."""
    seen = [each.wire_bytes.get(party, {}).get("data", nan) for each in records]
    return sum(seen) / num_tokens if num_tokens else nan


def checks_of(cell: Cell) -> list[Check]:
    """All promises for one setting."""
    rows = rows_of(cell)
    return [*_exact(rows), *_speed(cell, rows), *_goes_on(rows), *_predicted(rows)]


def _exact(rows: Mapping[str, Row]) -> Iterator[Check]:
    for name, row in rows.items():
        if row.num_wrong is not None:
            yield Check(
                promise=f"{name} commits the cloud's own tokens",
                numbers=f"{row.num_wrong} of {row.num_tokens} wrong",
                holds=row.num_wrong == 0,
            )


def _speed(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    wanted = SPEEDUPS.get(cell.setting.rtt_s)
    asked, pipelined = rows.get(ASKED.name), rows.get("pipelined")
    if wanted is None or asked is None or pipelined is None or cell.setting.bits_per_s is not None:
        return
    speedup = asked.token_s / pipelined.token_s
    share = accepted_along(cell)
    yield Check(
        promise=f"pipelined is {wanted:g} x as fast as asking for each token where {SPEED_ACCEPTANCE:g} are accepted",
        numbers=f"{1e3 * asked.token_s:.1f} / {1e3 * pipelined.token_s:.1f} ms per token = {speedup:.2f}, "
        f"the device's token is the cloud's at {share:.2f} of the steps",
        holds=speedup >= wanted if share >= SPEED_ACCEPTANCE else None,
    )


def accepted_along(cell: Cell) -> float:
    """Share of the steps at which the device's model would have drafted the committed token, as predicted; or nan."""
    return cell.predicted_also.get("pipelined", {}).get("acceptance", nan)


def _goes_on(rows: Mapping[str, Row]) -> Iterator[Check]:
    streamed, own = rows.get(STREAMED.name), rows.get("cloud_goes_on")
    if streamed is None or own is None:
        return
    times = own.token_s / streamed.token_s
    yield Check(
        promise=f"cloud_goes_on takes at most {GOES_ON:g} x the streamed cloud",
        numbers=f"{1e3 * own.token_s:.1f} / {1e3 * streamed.token_s:.1f} ms per token = {times:.2f}",
        holds=times <= GOES_ON,
    )


def _predicted(rows: Mapping[str, Row]) -> Iterator[Check]:
    """Of the systems with coupled drafts, whose acceptance is known beforehand."""
    seen = [row for row in rows.values() if row.num_wrong is not None and isfinite(row.predicted_s)]
    if seen:
        worst = max(seen, key=lambda row: abs(deviation(row)))
        yield Check(
            promise=f"times per token are within {AGREEMENT:.0%} of the prediction",
            numbers=f"furthest: {worst.system}, {deviation(worst):+.0%}",
            holds=abs(deviation(worst)) <= AGREEMENT,
        )


def deviation(row: Row) -> float:
    """Of the measured time per token from the predicted one, as a share."""
    return row.token_s / row.predicted_s - 1.0


def settings_of(cells: Sequence[Cell], name: str) -> list[float | None]:
    """The values of one setting, ascending; None, the unlimited rate, at the end."""
    values = {getattr(cell.setting, name) for cell in cells}
    return sorted(values, key=lambda value: (value is None, value or 0.0))
