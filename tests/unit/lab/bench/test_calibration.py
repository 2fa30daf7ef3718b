"""The parties' own work is found again in records that were made from it, and in nothing else."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from tandem.topology import SERVER
from tandem_lab.bench.federated import (
    STOP_AND_WAIT,
    TOKEN_WISE,
    Calibration,
    calibrate,
    describe,
    work_of,
)
from tandem_lab.bench.records import Cell, Record, Setting
from tandem_lab.bench.systems import System
from tandem_lab.simulation.timed import Times, Work, pace_s, play_timed

SETTING = Setting(
    floors_s=(0.015, 0.027), rtt_s=0.0, temperature=1.0, max_new_tokens=40, models="close",
    num_workers=2,
)  # fmt: skip
WORKERS = SETTING.workers
ACCEPTED = [step % 7 > 0 for step in range(40)]
WORK = Work(
    pass_s={SERVER: 0.007, **dict.fromkeys(WORKERS, 0.009)},
    token_s={SERVER: 0.0, **dict.fromkeys(WORKERS, 0.003)},
    frame_s={SERVER: 0.001, **dict.fromkeys(WORKERS, 0.0015)},
    core={SERVER: 0, **dict.fromkeys(WORKERS, 1)},
)


def record(system: System, pace: float, num_passes: int, num_drafts: int, num_frames: int) -> Record:
    """What actors with this work would report."""
    num_positions = num_passes + num_drafts
    cpu_s: dict[str, Any] = {
        f"{SERVER}/decoder": 0.007 * num_drafts,
        f"{SERVER}/draft_queue+aggregator": 0.001 * num_frames,
        f"{SERVER}/retriever": 0.5,
    }
    for name in WORKERS:
        cpu_s[f"{name}/decoder"] = 0.009 * num_passes + 0.003 * num_positions
        cpu_s[f"{name}/draft_queue+aggregator"] = 0.0015 * num_frames / 2
    return Record(
        system=system.name,
        run=0,
        question=0,
        token_ids=tuple(range(40)),
        committed_s=tuple(accumulate([0.3, *[pace] * 39])),
        num_forwards={SERVER: num_drafts, **dict.fromkeys(WORKERS, num_passes)},
        num_frames={"device": num_frames // 2, "cloud": num_frames - num_frames // 2},
        cpu_s=cpu_s,
    )


def cell(*paces: float) -> Cell:
    records = (record(TOKEN_WISE, paces[0], 40, 0, 200), record(STOP_AND_WAIT, paces[1], 10, 40, 60))
    return Cell(
        setting=SETTING, plan={}, records=records, predictions={}, reference=(tuple(range(40)),), ping_s=()
    )


def play_s(system: System, times: Times) -> float:
    return pace_s([play_timed(system.options, times, ACCEPTED).committed_s])


def test_work_is_found_in_the_records_that_it_makes() -> None:
    work = work_of(cell(0.04, 0.03))
    for name in ("pass_s", "token_s", "frame_s"):
        assert getattr(work, name) == pytest.approx(getattr(WORK, name)), name
    assert work.core == WORK.core


@pytest.mark.parametrize(("hop_s", "late_s"), [(0.001, 0.0), (0.0, 0.003), (0.002, 0.002)])
def test_what_is_left_is_the_time_between_actors_and_that_of_passes(hop_s: float, late_s: float) -> None:
    times = Calibration(work=WORK, hop_s=hop_s, late_s=late_s).times(SETTING)
    found = calibrate(cell(*(play_s(system, times) for system in (TOKEN_WISE, STOP_AND_WAIT))), play_s)
    assert (found.hop_s, found.late_s) == pytest.approx((hop_s, late_s), abs=2e-4)
    assert "a pass 9.0 + 3.0 per token" in describe(found, SETTING, 0.1)
