"""Cells as a benchmark would have measured them, with numbers that are easy to check by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tandem_lab.bench.records import Cell, Prediction, Record, Setting

SETTING = Setting(floors_s=(0.06, 0.025), rtt_s=0.3, temperature=0.0, max_new_tokens=48)
TOKENS = (5, 6, 7, 8, 9)
NUM_QUESTIONS = 2


def record(system: str, token_s: float, **changes: Any) -> Record:
    """Five tokens, the first after 0.5 s."""
    values: dict[str, Any] = {
        "run": 0,
        "question": 0,
        "token_ids": TOKENS,
        "committed_s": tuple(0.5 + token_s * step for step in range(len(TOKENS))),
        "num_accepted": {"device": 3, "cloud": 4},
        "expected_acceptance": {"device": 0.6, "cloud": 0.8},
        "num_forwards": {"device": 10, "cloud": 5},
        "num_abandoned": {"device": 2, "cloud": 0},
        "decode_s": {"device": 0.6, "cloud": 0.125},
        "waited_s": 0.1,
        "cpu_s": {"device/decoder": 0.2, "device/draft_queue": 0.05, "cloud/decoder": 0.1},
        "frame_bytes": {"device": 500, "cloud": 1000},
        "num_frames": {"device": 5, "cloud": 10},
        "num_messages": {"device": 4, "cloud": 8},
        "wire_bytes": {
            "device": {"data": 1500, "ray": 200, "other": 7},
            "cloud": {"data": 2000, "ray": 300, "other": 7},
        },
    }
    return Record(system=system, **(values | changes))


def cell(
    paces: Mapping[str, Sequence[float]] | None = None, setting: Setting = SETTING, **changes: Any
) -> Cell:
    """paces: seconds a token of each run of each system. Both questions of a run are alike."""
    paces = paces or {"CRCG/device": [0.06] * 3, "DRDG/TW": [0.3] * 3, "Tandem/mirror": [0.08, 0.07, 0.1]}
    records = tuple(
        replace(record(system, token_s), run=run, question=question)
        for system, runs in paces.items()
        for run, token_s in enumerate(runs)
        for question in range(NUM_QUESTIONS)
    )
    values: dict[str, Any] = {
        "plan": {
            "systems": list(paces),
            "runs": 3,
            "questions": NUM_QUESTIONS,
            "kv_store": ["disk", "off"],
            "settings": "0123456789abcdef",
        },
        "records": records,
        "predictions": {
            "Tandem/mirror": Prediction(token_s=0.075, forwards={"device": 1.5, "cloud": 1.1}),
        },
        "reference": (TOKENS,) * NUM_QUESTIONS,
        "ping_s": (0.3, 0.301, 0.299),
        "idle_bytes_per_s": {"device": 3000.0, "cloud": 4000.0},
    }
    return Cell(setting=setting, **(values | changes))


# ---- Cells whose drafter has no vote -----------------------------------------------------------------------------


PROPOSING = replace(SETTING, floors_s=(0.015, 0.027), rtt_s=0.1, temperature=1.0)
WORKERS_S = {"token-wise": 0.128, "stop_and_wait": 0.045, "pipelined": 0.025}
VOTING = replace(PROPOSING, models="close", num_workers=2, slow=4.0)


def proposed(system: str, pace_s: float, **changes: Any) -> Record:
    """An answer whose tokens come one by one."""
    values: dict[str, Any] = {
        "committed_s": tuple(0.3 + pace_s * step for step in range(len(TOKENS))),
        "num_accepted": {"device": 3},
        "num_forwards": {"device": 8, "cloud": 2},
        "wire_bytes": {"device": {"data": 200, "ray": 9}, "cloud": {"data": 300, "ray": 9}},
    }
    return record(system, pace_s, **(values | changes))


def voted(system: str, pace_s: float, **changes: Any) -> Record:
    """The same of a server and its workers."""
    values: dict[str, Any] = {
        "num_accepted": {"server": 3},
        "num_forwards": {"server": 8, "worker-1": 2, "worker-2": 3},
        "waited_for": {"worker-2": 4, "worker-1": 1},
    }
    return proposed(system, pace_s, **(values | changes))


def voting_cell(vote_bytes: float = 45.0, **changes: Any) -> Cell:
    """One question and run of each system, measured as predicted."""
    predictions = {name: Prediction(token_s=pace_s) for name, pace_s in WORKERS_S.items()}
    predictions["pipelined"] = Prediction(
        token_s=WORKERS_S["pipelined"],
        forwards={"server": 1.5, "worker-1": 0.4, "worker-2": 0.6},
        also={"vote_bytes": vote_bytes, "certified": 0.964},
    )
    own = tuple(voted(name, pace_s) for name, pace_s in WORKERS_S.items())
    return cell(setting=VOTING, **({"records": own, "predictions": predictions} | changes))
