"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

Rows: the cloud's and the device's decoding and link, then the answer with its waits, commits and handovers, and
counters. Knows timelines only; whoever calls it writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, TypeAlias

from tandem.topology import Party
from tandem_lab.timeline.intervals import DraftTimes, Span, StepTimes, Timeline

TraceEvent: TypeAlias = dict[str, Any]

PROCESSES = {Party.CLOUD: 1, Party.DEVICE: 2, None: 3}
"""Process ids, in the order in which they are shown; None: the answer itself, by the device's clock."""
WAITS, COMMITS, HANDOVERS, COUNTERS = 1, 2, 3, 4
"""Threads of the answer."""
DECODE, LINK = 100, 500
"""First threads of a side. Slices of one thread must not overlap, so what overlaps has a thread more."""


def trace(timeline: Timeline) -> dict[str, Any]:
    """The trace as a value for JSON, without nan: `traceEvents`, and last `tandem`, the timeline itself.

    `tandem` stands last because Perfetto reads nothing behind a key that it does not know.
    """
    events = [*_names(), *_party_events(timeline), *_answer_events(timeline), *_counters(timeline)]
    return {"traceEvents": events, "tandem": timeline.to_dict()}


def to_json(timeline: Timeline) -> str:
    """The trace file's text; raises ValueError rather than write a nan."""
    return json.dumps(trace(timeline), allow_nan=False, ensure_ascii=False)


# ---- the two sides -------------------------------------------------------------------------------------------


def _party_events(timeline: Timeline) -> Iterator[TraceEvent]:
    for party in (Party.CLOUD, Party.DEVICE):
        drafts = [(step, step.draft(party)) for step in timeline.steps]
        decoding = [_decode_slice(step, draft) for step, draft in drafts if draft.decode is not None]
        yield from _threads(decoding, party, DECODE, "decode")
        sent = [_link_slice(step, draft) for step, draft in drafts if draft.link is not None]
        sent += [
            _slice(f"verdict {step.step}", step.verdict, {"target": step.token})
            for step in timeline.steps
            if step.verdict is not None and step.aggregator is party
        ]
        yield from _threads(sent, party, LINK, "link")


def _decode_slice(step: StepTimes, draft: DraftTimes) -> TraceEvent:
    args = {
        "step": step.step,
        "epoch": draft.epoch,
        "accepted": draft.is_accepted,
        "expected acceptance": draft.acceptance,
    }
    return _slice(f"draft {step.step}", draft.decode, args)


def _link_slice(step: StepTimes, draft: DraftTimes) -> TraceEvent:
    return _slice(f"draft {step.step}", draft.link, {"step": step.step, "epoch": draft.epoch})


def _threads(slices: list[TraceEvent], party: Party, first: int, name: str) -> Iterator[TraceEvent]:
    """The slices, each on the first thread that is free then, and the threads' names."""
    ends: list[float] = []
    for each in sorted(slices, key=lambda each: float(each["ts"])):
        row = next((row for row, end in enumerate(ends) if end <= each["ts"]), len(ends))
        ends[row:] = [each["ts"] + each["dur"], *ends[row + 1 :]]
        yield {**each, "cat": name, "pid": PROCESSES[party], "tid": _tid(PROCESSES[party], first + row)}
    for row in range(len(ends)):
        yield from _thread_name(PROCESSES[party], first + row, name if row == 0 else f"{name} ({row + 1})")


# ---- the answer ----------------------------------------------------------------------------------------------


def _answer_events(timeline: Timeline) -> Iterator[TraceEvent]:
    pid = PROCESSES[None]
    for step in timeline.steps:
        for each in _waits(step):
            yield {**each, "cat": "wait", "pid": pid, "tid": _tid(pid, WAITS)}
        yield _instant(f"{step.step}: {_accepted(step)}", step.committed_s, COMMITS, _commit_args(step))
    at_s = {step.step: step.committed_s for step in timeline.steps}
    for handover in timeline.handovers:
        if handover.step - 1 in at_s:  # the switch rides in the verdict of the step before
            yield _instant(
                f"to the {handover.aggregator}", at_s[handover.step - 1], HANDOVERS, {"from": handover.step}
            )


def _waits(step: StepTimes) -> Iterator[TraceEvent]:
    """What passed between the previous commit and this one: waiting for a draft, then deciding."""
    if not isfinite(step.pair_s):
        return
    if step.waited_for is not None:
        wait_s = max(step.wait_for_device_s, step.wait_for_cloud_s)
        waiting = Span(start_s=step.pair_s - wait_s, end_s=step.pair_s)
        yield _slice(f"wait for the {step.waited_for}", waiting, {"step": step.step})
    yield _slice("decide", Span(start_s=step.pair_s, end_s=step.pair_s + step.decide_s), {"step": step.step})


def _commit_args(step: StepTimes) -> dict[str, Any]:
    return {
        "text": step.text,
        "token": step.token,
        "aggregator": str(step.aggregator),
        "alone": step.is_alone,
        "device epoch": step.device.epoch,
        "cloud epoch": step.cloud.epoch,
        "wait for device (ms)": 1e3 * step.wait_for_device_s,
        "wait for cloud (ms)": 1e3 * step.wait_for_cloud_s,
        "decide (ms)": 1e3 * step.decide_s,
        "delta Z (ms)": 1e3 * step.delta_z_s,
        **({} if step.estimate is None else {"assumed": "; ".join(step.estimate.assumed)}),
    }


def _accepted(step: StepTimes) -> str:
    names = [str(draft.party) for draft in (step.device, step.cloud) if draft.is_accepted]
    return " and ".join(names) or "neither"


def _counters(timeline: Timeline) -> Iterator[TraceEvent]:
    """Values that change from token to token; one that is not known leaves the last standing."""
    for step in timeline.steps:
        values = {
            "RTT (ms)": 1e3 * step.rtt_s,
            "delta Z (ms)": 1e3 * step.delta_z_s,
            "accepted: device (%)": 100 * step.device.accepted_share,
            "accepted: cloud (%)": 100 * step.cloud.accepted_share,
        }
        for name, value in values.items():
            if isfinite(value):
                yield {
                    "name": name,
                    "ph": "C",
                    "ts": _us(step.committed_s),
                    "pid": PROCESSES[None],
                    "tid": _tid(PROCESSES[None], COUNTERS),
                    "args": {"value": round(value, 3)},
                }


# ---- single events -------------------------------------------------------------------------------------------


def _names() -> Iterator[TraceEvent]:
    for party, pid in PROCESSES.items():
        yield _metadata("process_name", pid, 0, {"name": "answer" if party is None else str(party)})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    for tid, name in ((WAITS, "waits"), (COMMITS, "commits"), (HANDOVERS, "handovers")):
        yield from _thread_name(PROCESSES[None], tid, name)


def _thread_name(pid: int, tid: int, name: str) -> Sequence[TraceEvent]:
    return (
        _metadata("thread_name", pid, tid, {"name": name}),
        _metadata("thread_sort_index", pid, tid, {"sort_index": tid}),
    )


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> TraceEvent:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": _tid(pid, tid), "args": args}


def _slice(name: str, span: Span | None, args: dict[str, Any]) -> TraceEvent:
    """A complete event, still without process and thread."""
    assert span is not None
    start, end = _us(span.start_s), _us(span.end_s)
    if span.is_estimate:
        args = {
            **args,
            "estimate": "its time on the cloud's side is half a round trip from what the device saw",
        }
    return {"name": name, "ph": "X", "ts": start, "dur": end - start, "args": _known(args.items())}


def _instant(name: str, at_s: float, tid: int, args: dict[str, Any]) -> TraceEvent:
    return {
        "name": name,
        "cat": "answer",
        "ph": "i",
        "s": "t",  # scope: its thread
        "ts": _us(at_s),
        "pid": PROCESSES[None],
        "tid": _tid(PROCESSES[None], tid),
        "args": _known(args.items()),
    }


def _tid(pid: int, number: int) -> int:
    """Never 0 and of one process only: viewers look threads up by this number alone."""
    return 1000 * pid + number


def _known(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Without what is not a finite number."""
    kept = {}
    for key, value in items:
        if not isinstance(value, float):
            kept[key] = value
        elif isfinite(value):
            kept[key] = round(value, 3)
    return kept


def _us(seconds: float) -> int:
    """Whole microseconds; what is reckoned to lie before the query was opened is cut off there."""
    return max(0, round(1e6 * seconds))
