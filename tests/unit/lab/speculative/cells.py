"""Made-up cells of the benchmark of speculative decoding."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from tandem_lab.latency.records import Cell, Record, Setting

TOKENS = (5, 9, 4, 7, 8)
PACES_S = {"asked": 0.127, "streamed": 0.027, "pipelined": 0.045, "cloud_goes_on": 0.025}
SETTING = Setting(
    data_plane="socket",
    floors_s=(0.015, 0.027),
    rtt_s=0.1,
    temperature=1.0,
    max_new_tokens=48,
    bits_per_s=None,
)


def record(system: str, pace_s: float, run: int = 0, **changes: Any) -> Record:
    """An answer whose tokens come one by one."""
    values: dict[str, Any] = {
        "system": system,
        "run": run,
        "question": 0,
        "token_ids": TOKENS,
        "committed_s": tuple(accumulate([0.3, *[pace_s] * (len(TOKENS) - 1)])),
        "num_accepted": {"device": 3},
        "num_forwards": {"device": 8, "cloud": 2},
        "wire_bytes": {"device": {"data": 200, "ray": 9}, "cloud": {"data": 300, "ray": 9}},
    }
    return Record(**(values | changes))


def cell(setting: Setting = SETTING, *records: Record, acceptance: float = 0.9, **changes: Any) -> Cell:
    """One question and run of each system, measured as predicted."""
    values: dict[str, Any] = {
        "plan": {"systems": list(PACES_S), "runs": 1, "questions": 1, "settings": ""},
        "records": records or tuple(record(name, pace_s) for name, pace_s in PACES_S.items()),
        "predicted_s": dict(PACES_S),
        "predicted_forwards": {"pipelined": {"device": 1.5, "cloud": 0.4}},
        "predicted_speedup": {},
        "predicted_also": {
            "pipelined": {"first_s": 0.2, "up_bytes": 50.0, "down_bytes": 40.0, "acceptance": acceptance}
        },
        "reference": (TOKENS,),
        "ping_s": (0.1, 0.101),
    }
    return Cell(setting=setting, **(values | changes))
