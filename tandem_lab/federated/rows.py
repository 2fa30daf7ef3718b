"""One system in one setting as a line of a table, and what must hold. Knows records; writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median

from tandem.topology import SERVER, Party
from tandem_lab.federated.systems import PIPELINED, STOP_AND_WAIT, SYSTEMS, TOKEN_WISE
from tandem_lab.latency.checks import Check
from tandem_lab.latency.records import Cell, Record
from tandem_lab.latency.rows import num_wrong
from tandem_lab.numbers import median_of, ratio
from tandem_lab.simulation.conditions import pace_s

AGREEMENT = 0.10
"""Deviation of the measured time per token from the prediction, at most."""
VOTE_BYTES = 60.0
"""Payload of a vote, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system in one setting: medians over runs, or sums over all runs per token. nan: not known."""

    system: str
    token_s: float  # after the tokens of the first verdict
    first_s: float
    num_runs: int
    num_tokens: int  # of all runs
    accepted: float  # share of the committed tokens that the server had proposed
    drafts: float  # forwards of the server
    passes: float  # of a worker, mean
    up_bytes: float  # from a worker, mean: on its data connection, with headers and acknowledgements
    down_bytes: float  # to a worker
    waited_for: Mapping[str, float]  # by worker: share of the tokens for which its vote came last
    num_wrong: int  # tokens that are not those of the draft-free loop
    predicted_s: float
    predicted: Mapping[str, float]  # accepted, drafts, passes, vote_bytes, ...

    @property
    def deviation(self) -> float:
        """Of the measured time per token from the predicted one, as a share."""
        return self.token_s / self.predicted_s - 1.0


def rows_of(cell: Cell) -> dict[str, Row]:
    """A row of every system that was measured, in the order of the table."""
    seen = {record.system for record in cell.records}
    return {system.name: _row(cell, system.name) for system in SYSTEMS if system.name in seen}


def _row(cell: Cell, system: str) -> Row:
    records, workers = cell.of(system), cell.setting.workers
    runs = [[each for each in records if each.run == run] for run in sorted({each.run for each in records})]
    num_tokens = sum(each.num_tokens for each in records)
    num_passes = sum(each.num_forwards.get(name, 0) for each in records for name in workers)
    last: Counter[str] = sum((Counter(each.waited_for) for each in records), Counter())
    forwards = cell.predicted_forwards.get(system, {})
    return Row(
        system=system,
        token_s=median_of([pace_s([each.committed_s for each in run]) for run in runs]),
        first_s=median(each.ttft_s for each in records),
        num_runs=len(runs),
        num_tokens=num_tokens,
        accepted=ratio(sum(each.num_accepted.get(SERVER, 0) for each in records), num_tokens),
        drafts=ratio(sum(each.num_forwards.get(SERVER, 0) for each in records), num_tokens),
        passes=ratio(num_passes, num_tokens * len(workers)),
        up_bytes=_wire_bytes(records, Party.CLOUD, num_tokens * len(workers)),
        down_bytes=_wire_bytes(records, Party.DEVICE, num_tokens * len(workers)),
        waited_for={name: ratio(last[name], sum(last.values())) for name in workers},
        num_wrong=num_wrong(records, cell.reference),
        predicted_s=cell.predicted_s.get(system, nan),
        predicted=dict(cell.predicted_also.get(system, {}))
        | {
            "drafts": forwards.get(SERVER, nan),
            "passes": ratio(sum(forwards.get(name, nan) for name in workers), len(workers)),
        },
    )


def _wire_bytes(records: Sequence[Record], host: Party, num_parts: int) -> float:
    """By the host of the network that sends: the device's is the server's, the cloud's that of all workers."""
    return ratio(sum(each.wire_bytes.get(host, {}).get("data", nan) for each in records), num_parts)


def checks_of(cell: Cell) -> list[Check]:
    """All promises for one setting."""
    rows = rows_of(cell)
    return [*_exact(rows), *_speed(rows), *_votes(rows), *_predicted(rows)]


def _exact(rows: Mapping[str, Row]) -> Iterator[Check]:
    num_tokens = sum(row.num_tokens for row in rows.values())
    wrong = sum(row.num_wrong for row in rows.values())
    yield Check(
        promise="every system commits the tokens of the draft-free loop",
        numbers=f"{wrong} of {num_tokens} wrong",
        holds=wrong == 0,
    )


def _speed(rows: Mapping[str, Row]) -> Iterator[Check]:
    """Measured over predicted ratio to the token-wise loop (spec: within 10 % of the model for this acceptance)."""
    base = rows.get(TOKEN_WISE.name)
    for name in (STOP_AND_WAIT.name, PIPELINED.name):
        row = rows.get(name)
        if base is None or row is None:
            continue
        measured, predicted = base.token_s / row.token_s, base.predicted_s / row.predicted_s
        yield Check(
            promise=f"{name} gains on the token-wise loop what its acceptance gives, within {AGREEMENT:.0%}",
            numbers=f"{measured:.2f} x, predicted {predicted:.2f} x at {row.accepted:.2f} accepted",
            holds=abs(measured / predicted - 1.0) <= AGREEMENT if isfinite(predicted) else None,
        )


def _votes(rows: Mapping[str, Row]) -> Iterator[Check]:
    sizes = [size for row in rows.values() if isfinite(size := row.predicted.get("vote_bytes", nan))]
    if sizes:
        yield Check(
            promise=f"a vote has at most {VOTE_BYTES:.0f} bytes",
            numbers=f"{max(sizes):.1f} bytes on average, without its frame",
            holds=max(sizes) <= VOTE_BYTES,
        )


def _predicted(rows: Mapping[str, Row]) -> Iterator[Check]:
    seen = [row for row in rows.values() if isfinite(row.predicted_s)]
    if seen:
        worst = max(seen, key=lambda row: abs(row.deviation))
        yield Check(
            promise=f"times per token are within {AGREEMENT:.0%} of the prediction",
            numbers=f"furthest: {worst.system}, {worst.deviation:+.0%}",
            holds=abs(worst.deviation) <= AGREEMENT,
        )
