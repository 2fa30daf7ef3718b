"""What the parties' own work takes, measured apart from the cells that it predicts.

Without a delay, token-wise and stop-and-wait answers are measured first, on the same actors, cores and models. From
their processor time come that of a draft, of a pass (a basis and a part for each token), and of a frame. The server has
one core and all workers the other, so a worker's time counts once for each of them. What both kinds of answers take
longer than their simulation, for wake-ups and calls, is split into a time between two actors and one at the end of each
pass, of which a round of stop-and-wait has five, and a token-wise one has one. Nothing is taken from an answer with a
delay, nor from a pipelined or adaptive one: a prediction that knew what it predicts would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from tandem.topology import SERVER
from tandem_lab.federated.systems import CALIBRATION, STOP_AND_WAIT, TOKEN_WISE
from tandem_lab.latency.records import Cell, Record, Setting
from tandem_lab.latency.systems import System
from tandem_lab.numbers import ratio
from tandem_lab.simulation.conditions import pace_s
from tandem_lab.simulation.timed import Times, Work

SERVER_CORE, WORKERS_CORE = 0, 1
TRIAL_S, NUM_STEPS = 0.001, 3
"""How far the search for the times that are left looks ahead, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Of one number of workers."""

    work: Work
    hop_s: float  # between two actors of one party
    late_s: float  # at the end of a pass

    def times(self, setting: Setting) -> Times:
        """Those of a setting."""
        return Times(
            passes_s=floors_s(setting),
            rtt_s=setting.rtt_s,
            hop_s=self.hop_s,
            late_s=self.late_s,
            work=self.work,
        )


def floors_s(setting: Setting) -> dict[str, float]:
    """The least time of a pass, by party."""
    assert setting.floors_s is not None
    server_s, worker_s = setting.floors_s
    passes_s = {SERVER: server_s, **dict.fromkeys(setting.workers, worker_s)}
    passes_s[setting.workers[-1]] = setting.slow * worker_s
    return passes_s


def calibrate(cell: Cell, play_s: Callable[[System, Times], float]) -> Calibration:
    """From answers without a delay. play_s: seconds per token of the same answers in the simulation."""
    bare = Times(passes_s=floors_s(cell.setting), rtt_s=0.0, work=work_of(cell))
    measured_s = np.array([token_s(cell.of(system.name)) for system in CALIBRATION])
    trials = TRIAL_S * np.eye(2)

    def played_s(left_s: NDArray[np.float64]) -> NDArray[np.float64]:
        times = replace(bare, hop_s=float(left_s[0]), late_s=float(left_s[1]))
        return np.array([play_s(system, times) for system in CALIBRATION])

    left_s = np.zeros(2)
    for _ in range(NUM_STEPS):  # Newton's: both paces are nearly linear in both times
        here_s = played_s(left_s)
        slopes = np.column_stack([(played_s(left_s + trial) - here_s) / TRIAL_S for trial in trials])
        left_s = nearest_at_least_0(slopes, measured_s - here_s + slopes @ left_s)
    assert bare.work is not None
    return Calibration(work=bare.work, hop_s=float(left_s[0]), late_s=float(left_s[1]))


def nearest_at_least_0(slopes: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x [2], nowhere below 0, whose slopes @ x is nearest to `wanted`: both of its values, one alone, or none."""
    tried: list[NDArray[np.float64]] = []
    for used in ([True, True], [True, False], [False, True], [False, False]):
        values = np.zeros(2)
        values[used] = np.linalg.lstsq(slopes[:, used], wanted, rcond=None)[0]
        if (values >= 0.0).all():
            tried.append(values)
    return min(tried, key=lambda values: float(np.linalg.norm(slopes @ values - wanted)))


def work_of(cell: Cell) -> Work:
    """Processor time of passes and frames, of all records of a cell; workers are alike."""
    workers = cell.setting.workers
    asked, proposed = cell.of(TOKEN_WISE.name), cell.of(STOP_AND_WAIT.name)
    short_s, long_s = (_decoder_s(records, workers) for records in (asked, proposed))
    # A pass of the token-wise loop votes on one token; one of stop-and-wait on the proposed ones and one more.
    num_tokens = 1.0 + ratio(_num_passes(proposed, [SERVER]), _num_passes(proposed, workers[:1]))
    token_s = max(0.0, (long_s - short_s) / (num_tokens - 1.0))
    token_s = min(token_s, short_s)
    return Work(
        pass_s={SERVER: _decoder_s(proposed, [SERVER]), **dict.fromkeys(workers, short_s - token_s)},
        token_s={SERVER: 0.0, **dict.fromkeys(workers, token_s)},
        frame_s={
            SERVER: _frame_s([*asked, *proposed], [SERVER]),
            **dict.fromkeys(workers, _frame_s([*asked, *proposed], workers)),
        },
        core={SERVER: SERVER_CORE, **dict.fromkeys(workers, WORKERS_CORE)},
    )


def token_s(records: Sequence[Record]) -> float:
    """Seconds per token of all answers."""
    return pace_s([record.committed_s for record in records])


def _decoder_s(records: Sequence[Record], parties: Sequence[str]) -> float:
    """Processor time of a pass."""
    return ratio(_cpu_s(records, parties, is_decoder=True), _num_passes(records, parties))


def _frame_s(records: Sequence[Record], parties: Sequence[str]) -> float:
    """Processor time of a frame at a party's draft queue and the actors that share its process. Every frame is one
    that the server sends or takes in, and so is it for a worker."""
    num_frames = sum(sum(record.num_frames.values()) for record in records)
    return ratio(_cpu_s(records, parties, is_decoder=False), num_frames)


def _cpu_s(records: Sequence[Record], parties: Sequence[str], *, is_decoder: bool) -> float:
    return sum(
        seconds
        for record in records
        for name, seconds in record.cpu_s.items()
        if name.partition("/")[0] in parties
        and isfinite(seconds)
        and ("decoder" in name.partition("/")[2]) == is_decoder
        and "retriever" not in name.partition("/")[2].split("+")
    )


def _num_passes(records: Sequence[Record], parties: Sequence[str]) -> int:
    """Those that were abandoned count."""
    return sum(
        record.num_forwards.get(party, 0) + record.num_abandoned.get(party, 0)
        for record in records
        for party in parties
    )


def describe(calibration: Calibration, setting: Setting, off: float) -> str:
    """One line for a person. off: of stop-and-wait without a delay, of its simulation."""
    work, worker = calibration.work, setting.workers[0]
    return (
        f"calibrated: {setting.num_workers} workers: a draft {1e3 * work.pass_s[SERVER]:.1f} ms of processor time, a "
        f"pass {1e3 * work.pass_s[worker]:.1f} + {1e3 * work.token_s[worker]:.1f} per token, a frame "
        f"{1e3 * work.frame_s[SERVER]:.1f} at the server and {1e3 * work.frame_s[worker]:.1f} at a worker, "
        f"{1e3 * calibration.hop_s:.1f} between "
        f"actors, {1e3 * calibration.late_s:.1f} at the end of a pass; stop_and_wait without a delay {off:+.0%}"
    )
