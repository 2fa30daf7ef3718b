"""What a benchmark of latency must show: each promise as a sentence, whether it holds, and the numbers.

Thresholds are Tandem's own, or DRAGON's where the sentence says so. A promise whose condition is not met (an acceptance
that is too low, a system that was not measured) is reported without a verdict or left out. Knows rows and cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean

from tandem.topology import PARTIES, Party
from tandem_lab.latency.plan import TTFT_TOKENS
from tandem_lab.latency.records import Cell, Setting
from tandem_lab.latency.rows import Row, row_of
from tandem_lab.latency.systems import BY_NAME, CLOUD_ONLY, DEVICE_ONLY, MIRROR, TOKEN_WISE

OVERHEAD_AT_0, OVERHEAD_AT_100_MS, HALF_OVERHEAD_AT_300_MS = 1.10, 1.25, 1.40
"""Time per token over that of the device alone, at most; the last where half of the drafts are accepted."""
HALF_ACCEPTANCE = (0.4, 0.6)
"""What counts as half of the drafts, both parties' together."""
PAPERS_REDUCTION, MIRRORS_REDUCTION = 0.424, 0.65
"""Time per token below that of DRDG/TW at 300 ms, at least. The first is DRAGON 7.3's, measured up to 300 ms."""
PAPERS_ACCEPTANCE, MIRRORS_ACCEPTANCE = 0.55, 0.60
"""Of the cloud's drafts, from which on these are asked for."""
TTFT_FACTOR, TTFT_MARGIN_S = 1.05, 0.010
"""Time to first token over the later of both sides alone, at most."""
FORWARDS, FORWARDS_ACCEPTANCE = 2.0, 0.8
SOCKET_BYTES, RAY_BYTES = 350.0, 950.0
"""On the link: a token and direction with `socket`, a message both ways with `ray`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise in one setting."""

    promise: str
    numbers: str
    holds: bool | None  # None: reported only

    def __str__(self) -> str:
        verdict = {True: "yes", False: "NO", None: "--"}[self.holds]
        return f"{verdict:>3}  {self.promise}: {self.numbers}"


def rows_of(cell: Cell) -> dict[str, Row]:
    """A row of every system that was measured, in the order of the table."""
    seen = {record.system for record in cell.records}
    return {name: row_of(cell, name) for name in BY_NAME if name in seen}


def checks_of(cell: Cell, cells: Sequence[Cell]) -> list[Check]:
    """All promises for one setting. cells: all that were measured, for what compares two of them.

    Where answers are as short as a benchmark of the first token asks for, nothing is said a token.
    """
    rows = rows_of(cell)
    if cell.setting.max_new_tokens <= TTFT_TOKENS:
        return [*_same_tokens(rows), *_time_to_first(cell, rows)]
    has_floors = cell.setting.floors_s is not None
    found = [*_same_tokens(rows), *_time_to_first(cell, rows), *_forwards(cell, rows)]
    found += [*_bytes(cell, rows, cells), *_half_accepted(cell, rows)]
    if DEVICE_ONLY.name in rows:
        found += _against_device(cell, rows, is_asked_for=has_floors)
    if TOKEN_WISE.name in rows and cell.setting.rtt_s >= 0.3:
        found += _against_token_wise(rows, is_asked_for=has_floors)
    return found


def _same_tokens(rows: Mapping[str, Row]) -> Iterator[Check]:
    for name, row in rows.items():
        if row.num_wrong is not None:
            total = row.num_tokens * row.num_runs
            yield Check(
                promise=f"{name} commits the tokens of the synchronous run without latency",
                numbers=f"{row.num_wrong} of {total} wrong",
                holds=row.num_wrong == 0,
            )


def _against_device(cell: Cell, rows: Mapping[str, Row], *, is_asked_for: bool) -> Iterator[Check]:
    base_s = rows[DEVICE_ONLY.name].token_s
    for name, row in rows.items():
        limit = _overhead_limit(cell.setting, name)
        if limit is None or not base_s > 0:
            continue
        ratio = row.token_s / base_s
        yield Check(
            promise=f"{name} takes at most {limit:g} x the device alone",
            numbers=f"{1e3 * row.token_s:.1f} / {1e3 * base_s:.1f} ms per token = {ratio:.2f}",
            holds=ratio <= limit if is_asked_for else None,
        )


def _overhead_limit(setting: Setting, name: str) -> float | None:
    """At 0 for every coupled placement that is meant to be fast, at 100 ms for mirror; where half of the drafts are
    accepted, at 300 ms for mirror alone.
    """
    system, rtt_s = BY_NAME[name], setting.rtt_s
    if setting.models == "half":
        return HALF_OVERHEAD_AT_300_MS if rtt_s == 0.3 and name == MIRROR.name else None
    if rtt_s == 0 and system.is_speculative and system.is_seed_deterministic and not name.endswith("/random"):
        return OVERHEAD_AT_0
    return OVERHEAD_AT_100_MS if rtt_s == 0.1 and name == MIRROR.name else None


def _half_accepted(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    """Whether the case of half of the drafts accepted is one."""
    row = rows.get(MIRROR.name)
    if cell.setting.models != "half" or row is None:
        return
    low, high = HALF_ACCEPTANCE
    share = fmean(row.acceptance[party] for party in PARTIES)
    yield Check(
        promise=f"{MIRROR.name} accepts {low:g} to {high:g} of all drafts",
        numbers=f"{share:.2f} (device {row.acceptance[Party.DEVICE]:.2f}, cloud {row.acceptance[Party.CLOUD]:.2f})",
        holds=low <= share <= high,
    )


def _against_token_wise(rows: Mapping[str, Row], *, is_asked_for: bool) -> Iterator[Check]:
    base_s = rows[TOKEN_WISE.name].token_s
    for name, row in rows.items():
        if not BY_NAME[name].is_speculative:
            continue
        alpha = row.acceptance[Party.CLOUD]
        wanted, from_alpha = PAPERS_REDUCTION, PAPERS_ACCEPTANCE
        if name == MIRROR.name and alpha >= MIRRORS_ACCEPTANCE:
            wanted, from_alpha = MIRRORS_REDUCTION, MIRRORS_ACCEPTANCE
        reduction = 1 - row.token_s / base_s
        yield Check(
            promise=f"{name} is at least {wanted:.1%} below DRDG/TW where the cloud's acceptance is {from_alpha:g}",
            numbers=f"{1e3 * row.token_s:.1f} / {1e3 * base_s:.1f} ms per token: {reduction:.1%} below, "
            f"acceptance {alpha:.2f}" + _sequence_wise(row, rows),
            holds=reduction >= wanted if is_asked_for and alpha >= from_alpha else None,
        )


def _sequence_wise(row: Row, rows: Mapping[str, Row]) -> str:
    found = ""
    for name in ("DRDG/SW-dense", "DRDG/SW"):
        if name in rows:
            share = row.token_s / rows[name].token_s - 1
            found += f"; {abs(share):.1%} {'above' if share > 0 else 'below'} {name}"
    return found


def _time_to_first(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    if not {DEVICE_ONLY.name, CLOUD_ONLY.name, MIRROR.name} <= rows.keys():
        return
    device_s, cloud_s, own_s = (rows[each.name].ttft_s for each in (DEVICE_ONLY, CLOUD_ONLY, MIRROR))
    limit_s = TTFT_FACTOR * max(device_s, cell.setting.rtt_s + cloud_s) + TTFT_MARGIN_S
    yield Check(
        promise=f"{MIRROR.name} has its first token within {TTFT_FACTOR:g} x max(device alone, RTT + cloud alone) "
        f"+ {1e3 * TTFT_MARGIN_S:g} ms",
        numbers=f"{1e3 * own_s:.0f} ms, limit {1e3 * limit_s:.0f} ms (device {1e3 * device_s:.0f}, "
        f"cloud {1e3 * cloud_s:.0f})",
        holds=own_s <= limit_s,
    )
    for name in ("DRCG/Text", "DRCG/KV"):
        if name in rows:
            yield Check(
                promise=f"{MIRROR.name} has its first token before {name}",
                numbers=f"{1e3 * own_s:.0f} against {1e3 * rows[name].ttft_s:.0f} ms, "
                f"{rows[name].ttft_s / own_s:.1f} times",
                holds=own_s < rows[name].ttft_s,
            )


def _forwards(cell: Cell, rows: Mapping[str, Row]) -> Iterator[Check]:
    for name, row in rows.items():
        if not BY_NAME[name].is_speculative:
            continue
        for party in PARTIES:
            count, alpha = row.forwards_per_token[party], row.acceptance[party]
            predicted = cell.predicted_forwards.get(name, {}).get(party)
            beside = "" if predicted is None else f", simulated {predicted:.2f}"
            yield Check(
                promise=f"{name}, {party}: at most {FORWARDS:g} forwards per token where its acceptance is "
                f"{FORWARDS_ACCEPTANCE:g}",
                numbers=f"{count:.2f} at {alpha:.2f}{beside}",
                holds=count <= FORWARDS if alpha >= FORWARDS_ACCEPTANCE else None,
            )


def _bytes(cell: Cell, rows: Mapping[str, Row], cells: Sequence[Cell]) -> Iterator[Check]:
    row = rows.get(MIRROR.name)
    if row is None or not any(row.wire_bytes.values()):
        return
    is_asked_for = cell.setting.temperature == 0 and cell.setting.models == "configured"
    if cell.setting.data_plane == "ray":
        yield from _ray_bytes(cell, row, cells)
        return
    for party in PARTIES:
        value = row.wire_bytes[party].get("data", 0.0)
        yield Check(
            promise=f"{MIRROR.name} puts at most {SOCKET_BYTES:g} bytes per token on the data connection "
            f"from the {party}",
            numbers=f"{value:.0f}, in frames of {row.bytes_per_frame[party]:.0f} bytes",
            holds=value <= SOCKET_BYTES if is_asked_for else None,
        )


def _ray_bytes(cell: Cell, row: Row, cells: Sequence[Cell]) -> Iterator[Check]:
    """What opening a query and Ray itself cost is what they cost beside the socket plane in the same setting."""
    apart = _bytes_of_ray_itself(cell, cells)
    total = sum(row.wire_bytes[party].get("ray", 0.0) for party in PARTIES) - (apart or 0.0)
    count = sum(row.messages.values())
    if not (isfinite(count) and count > 0):
        return
    what = "nothing subtracted" if apart is None else f"{apart:.0f} a token of Ray itself apart"
    yield Check(
        promise=f"{MIRROR.name} puts at most {RAY_BYTES:g} bytes a message on the link with the ray plane",
        numbers=f"{total / count:.0f} both ways together, {count:.1f} messages a token, {what}",
        holds=total / count <= RAY_BYTES if cell.setting.temperature == 0 else None,
    )


def _bytes_of_ray_itself(cell: Cell, cells: Sequence[Cell]) -> float | None:
    """A token, both ways: on Ray's connections while the same was asked over the socket plane."""
    for other in cells:
        if other.setting == replace(cell.setting, data_plane="socket") and other.of(MIRROR.name):
            wire = row_of(other, MIRROR.name).wire_bytes
            return sum(wire[party].get("ray", 0.0) for party in PARTIES)
    return None
