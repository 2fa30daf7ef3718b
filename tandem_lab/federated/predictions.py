"""What each system should take, before anybody measures: the real models' acceptance in the simulated protocol.

The draft-free loop gives the tokens that every system must commit, and along them the server's model says at which
steps its token is the same. `tandem_lab.simulation.timed` plays such an answer with the times of the benchmark: the
floors of a draft and a pass, the link, and the parties' own work as measured without a delay
(`tandem_lab.federated.calibration`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import nan
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.coupling import noise
from tandem.aggregation.race_lists import certify, race_list
from tandem.codecs.race_lists import encode_race_list
from tandem.modes.spec import SessionSpec
from tandem.topology import SERVER
from tandem_lab.federated.calibration import Calibration, calibrate, describe, floors_s, token_s
from tandem_lab.federated.systems import STOP_AND_WAIT
from tandem_lab.federated.workers import LocalWorkers
from tandem_lab.latency.predictions import Prediction
from tandem_lab.latency.records import Cell, Setting
from tandem_lab.latency.systems import System
from tandem_lab.simulation.conditions import pace_s
from tandem_lab.simulation.timed import Times, Timing, play_timed


@dataclass(frozen=True, slots=True)
class Path:
    """One answer of the workers, and how the server's model would have drafted along it."""

    tokens: tuple[int, ...]
    accepted: tuple[bool, ...]  # the server's token is the target
    vote_bytes: float  # of a vote's first race list, on average
    certified: float  # share of the steps that the first lists settle


class FederatedPredictor:
    """Predictions for a few questions. Implements `tandem_lab.latency.predictions.Predicts`."""

    def __init__(self, load: Callable[[], LocalWorkers], questions: Sequence[str]) -> None:
        """load: called once, at the first prediction."""
        self._load, self._questions = cache(load), questions
        self._paths: dict[tuple[float, int], list[Path]] = {}
        self._calibrations: dict[Setting, Calibration] = {}

    def calibrate(self, cell: Cell) -> str:
        """Use what answers without a delay took, for all cells that differ in the round trip alone; in words."""
        setting = cell.setting

        def play_s(system: System, times: Times) -> float:
            return _pace_s(
                [play_timed(system.options, times, path.accepted) for path in self._follow(setting)]
            )

        calibration = self._calibrations[setting] = calibrate(cell, play_s)
        simulated_s = play_s(STOP_AND_WAIT, calibration.times(setting))
        return describe(calibration, setting, token_s(cell.of(STOP_AND_WAIT.name)) / simulated_s - 1.0)

    def reference(self, setting: Setting) -> tuple[tuple[int, ...], ...]:
        """The answer to each question; its number is its seed."""
        return tuple(path.tokens for path in self._follow(setting))

    def predict(self, system: System, setting: Setting) -> Prediction:
        """For one system; nothing where decode times are the machine's own."""
        paths = self._follow(setting)
        if setting.floors_s is None:
            return Prediction(token_s=nan)
        timings, bare = (
            [play_timed(system.options, times, path.accepted) for path in paths]
            for times in self._times(setting)
        )
        num_tokens = sum(len(path.tokens) for path in paths)
        num_passes = {
            party: sum(timing.num_passes.get(party, 0) for timing in timings) / num_tokens
            for party in (SERVER, *setting.workers)
        }
        return Prediction(
            token_s=_pace_s(timings),
            acceptance={SERVER: sum(timing.num_accepted for timing in timings) / num_tokens},
            forwards_per_token=num_passes,
            also={
                "acceptance": fmean(is_right for path in paths for is_right in path.accepted),
                "first_s": median(timing.committed_s[0] for timing in timings),
                "floors_s": _pace_s(bare),
                "vote_bytes": fmean(path.vote_bytes for path in paths),
                "certified": fmean(path.certified for path in paths),
            },
        )

    def _times(self, setting: Setting) -> tuple[Times, Times]:
        """With the parties' own work, where it was measured, and with the floors alone."""
        bare = Times(passes_s=floors_s(setting), rtt_s=setting.rtt_s)
        calibration = self._calibrations.get(replace(setting, rtt_s=0.0))
        return (bare if calibration is None else calibration.times(setting)), bare

    def _follow(self, setting: Setting) -> list[Path]:
        key = (setting.temperature, setting.max_new_tokens)
        if key not in self._paths:
            local = self._load()
            self._paths[key] = [
                follow(local, local.make_spec(question, seed, temperature=key[0], max_new_tokens=key[1]))
                for seed, question in enumerate(self._questions)
            ]
        return self._paths[key]


def _pace_s(timings: Sequence[Timing]) -> float:
    """Seconds per token."""
    return pace_s([timing.committed_s for timing in timings])


def follow(local: LocalWorkers, spec: SessionSpec) -> Path:
    """The answer of the draft-free loop (`tandem.modes.reference`), in arrays, and what is seen along it."""
    voters = [local.voter(spec, name) for name in spec.roles.voters]
    drafter, is_complete = local.voter(spec, spec.home), local.is_complete(spec)
    tokens: list[int] = []
    accepted, sizes, certain = list[bool](), list[int](), list[bool]()
    while not is_complete(tokens):
        step, votes = len(tokens), [voter.distribution(tokens) for voter in voters]
        clocks = noise(spec.seed, step, np.arange(spec.vocab_size)) if spec.sampling.temperature else 1.0
        target = mix(votes, spec.weights)
        token = int(np.argmax(target / clocks))
        accepted.append(int(np.argmax(drafter.distribution(tokens) / clocks)) == token)
        if spec.rules.has_race_lists:
            options: Any = {"seed": spec.seed, "step": step, "temperature": spec.sampling.temperature}
            lists = [race_list(vote, spec.race_depth, **options) for vote in votes]
            sizes += [len(encode_race_list(each, spec.vocab_size)) for each in lists]
            certain.append(certify(lists, spec.weights, **options).is_certain)
        tokens.append(token)
    return Path(
        tuple(tokens), tuple(accepted), fmean(sizes) if sizes else nan, fmean(certain) if certain else nan
    )


def mix(votes: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> NDArray[np.float64]:
    """The target [vocab], summed in the voters' order."""
    target = weights[0] * votes[0]
    for weight, vote in zip(weights[1:], votes[1:], strict=True):
        target = target + weight * vote
    return target
