"""One system in one cell as a line of a table: medians over runs, and sums per token.

Knows records and no thresholds; what must hold is in `tandem_lab.latency.checks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean, median, quantiles

from tandem.topology import PARTIES, Party
from tandem_lab.latency.records import Cell, Record
from tandem_lab.latency.systems import BY_NAME
from tandem_lab.numbers import ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system in one setting. Quantities are medians over runs, or sums over all runs a token. nan: not known."""

    system: str
    token_s: float  # (t_last - t_first) / (n - 1), summed over the questions of a run
    token_s_p25: float
    token_s_p75: float
    ttft_s: float  # median over all questions of all runs
    num_runs: int
    num_tokens: int  # of one run
    tokens_per_s: float  # from the question to the last token
    acceptance: dict[str, float]
    expected_acceptance: dict[str, float]
    forwards_per_token: dict[str, float]
    abandoned_per_token: dict[str, float]
    lost_s: dict[str, float]  # a token
    waited_s: float  # a token
    cpu_s: dict[str, float]  # a token, by side
    cpu_s_by_actor: dict[str, float]
    frame_bytes: dict[str, float]  # a token
    wire_bytes: dict[str, dict[str, float]]  # a token
    bytes_per_frame: dict[str, float]
    messages: dict[str, float]  # a token
    frame_share: float  # of all bytes on TCP connections while somebody was asking
    num_resyncs: int
    num_wrong: int | None  # tokens that are not those of the synchronous run; None: they need not be


def row_of(cell: Cell, system: str) -> Row:
    """What the records of one system say. There must be one at least."""
    records = cell.of(system)
    runs = [[each for each in records if each.run == run] for run in sorted({each.run for each in records})]
    paces = [pace_s(run) for run in runs]
    num_tokens = sum(each.num_tokens for each in records)
    p25, _, p75 = quantiles(paces, n=4, method="inclusive") if len(paces) > 1 else paces * 3
    actors = sorted({actor for each in records for actor in each.cpu_s})
    cpu_s = {actor: sum(each.cpu_s.get(actor, 0.0) for each in records) / num_tokens for actor in actors}
    frame_bytes = {party: _sum(records, "frame_bytes", party) for party in PARTIES}
    wire = {party: _wire(records, party) for party in PARTIES}
    return Row(
        system=system,
        token_s=median(paces),
        token_s_p25=p25,
        token_s_p75=p75,
        ttft_s=median(each.ttft_s for each in records),
        num_runs=len(runs),
        num_tokens=round(num_tokens / len(runs)),
        tokens_per_s=num_tokens / sum(each.committed_s[-1] for each in records),
        acceptance={party: _sum(records, "num_accepted", party) / num_tokens for party in PARTIES},
        expected_acceptance={party: _mean(records, "expected_acceptance", party) for party in PARTIES},
        forwards_per_token={party: _sum(records, "num_forwards", party) / num_tokens for party in PARTIES},
        abandoned_per_token={party: _sum(records, "num_abandoned", party) / num_tokens for party in PARTIES},
        lost_s={party: sum(each.lost_s(party) for each in records) / num_tokens for party in PARTIES},
        waited_s=sum(each.waited_s for each in records) / num_tokens,
        cpu_s={
            party: sum(s for actor, s in cpu_s.items() if actor.startswith(f"{party}/")) for party in PARTIES
        },
        cpu_s_by_actor=cpu_s,
        frame_bytes={party: value / num_tokens for party, value in frame_bytes.items()},
        wire_bytes={
            party: {port: value / num_tokens for port, value in wire[party].items()} for party in PARTIES
        },
        bytes_per_frame={
            party: ratio(frame_bytes[party], _sum(records, "num_frames", party)) for party in PARTIES
        },
        messages={party: _sum(records, "num_messages", party) / num_tokens for party in PARTIES},
        frame_share=ratio(
            sum(frame_bytes.values()),
            sum(ports.get("data", 0) + ports.get("ray", 0) for ports in wire.values()),
        ),
        num_resyncs=sum(each.num_resyncs for each in records),
        num_wrong=num_wrong(records, cell.reference) if BY_NAME[system].is_seed_deterministic else None,
    )


def pace_s(records: Sequence[Record]) -> float:
    """Seconds a token of one run: sum of spans over sum of (n - 1); nan if no answer has two tokens."""
    spans = [each for each in records if each.num_tokens > 1]
    gaps = sum(each.num_tokens - 1 for each in spans)
    return sum(each.span_s for each in spans) / gaps if gaps else nan


def num_wrong(records: Iterable[Record], reference: Sequence[Sequence[int]]) -> int:
    """Positions at which an answer is not the reference's: another token, one too many, or one that is missing."""
    count = 0
    for each in records:
        wanted = reference[each.question]
        count += abs(len(wanted) - each.num_tokens)
        count += sum(one != other for one, other in zip(wanted, each.token_ids, strict=False))
    return count


def _sum(records: Sequence[Record], name: str, party: Party) -> float:
    """nan if one record does not know it."""
    return float(sum(getattr(each, name).get(party, nan) for each in records))


def _mean(records: Sequence[Record], name: str, party: Party) -> float:
    known = [value for each in records if isfinite(value := getattr(each, name).get(party, nan))]
    return fmean(known) if known else nan


def _wire(records: Sequence[Record], party: Party) -> dict[str, int]:
    """Bytes of one sender by port, over all records."""
    found: dict[str, int] = {}
    for each in records:
        for port, value in each.wire_bytes.get(party, {}).items():
            found[port] = found.get(port, 0) + value
    return found
