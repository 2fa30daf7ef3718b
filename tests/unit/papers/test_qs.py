"""QS's policies of proposal lengths, loaded as one's own are; the network's state and file, and that it is of use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from tandem.errors import ConfigError
from tandem.plugins.papers.qs import (
    NUM_CONFIDENCES,
    SHAPES,
    DoubleDqn,
    LastAccepted,
    pack,
)
from tandem.scheduler.lengths import (
    MAX_LENGTH,
    BestLength,
    LengthPolicy,
    RoundCosts,
)
from tests.unit.papers.rounds import costs_of, play_rounds, tokens_per_s

COSTS = RoundCosts(fixed_s=0.2, token_s=0.02, alone_s=0.1)


def test_only_accepted_tokens_count(tmp_path: Path) -> None:
    """Weights under which the mean confidence decides: above one half 9 tokens, else 2."""
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    weights[0][NUM_CONFIDENCES, 0] = weights[2][0, 0] = 1.0
    weights[4][0, 8], weights[5][1] = 1.0, 0.5
    np.save(tmp_path / "mean.npy", pack(weights))

    def chosen(num_accepted: int, confidences: list[float], rate: float = 0.1) -> int:
        policy = DoubleDqn(MAX_LENGTH, str(tmp_path / "mean.npy"))
        policy.choose([rate] * MAX_LENGTH, COSTS)
        policy.observe(3, num_accepted, confidences)
        return policy.choose([rate] * MAX_LENGTH, COSTS)

    assert chosen(2, [0.8, 0.7, 0.0]) == 9
    assert chosen(3, [0.8, 0.7, 0.0]) == 2
    assert chosen(0, [0.8, 0.7, 0.9]) == 2
    assert chosen(3, [], rate=0.6) == 9, "the estimated rate, where confidences are not known"


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(5, np.float16))
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(ConfigError, match=r"are \d+ numbers, but .*short.npy has shape \(5,\)"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "short.npy"))
    with pytest.raises(ConfigError, match=r"cannot be read from .*text.npy"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "text.npy"))
    with pytest.raises(ConfigError, match=r"cannot be read from .*none.npy"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "none.npy"))


def test_it_has_learned_more_than_the_heuristic_does() -> None:
    """Over links and rates at which lengths from 1 to the longest are best; and longer proposals at higher rates."""

    def speed(make: Callable[[int], LengthPolicy], rate: float, rtt_s: float) -> float:
        costs = costs_of(rtt_s, 1e6, streamed=False)
        runs = (
            play_rounds(make(MAX_LENGTH), lambda _: rate, lambda _: costs, 1000, seed) for seed in range(3)
        )
        return mean(map(tokens_per_s, runs))

    cells = [(rate, rtt_s) for rate in (0.4, 0.6, 0.8, 0.9) for rtt_s in (0.02, 0.1, 0.3)]
    ratios = [speed(DoubleDqn, *cell) / speed(LastAccepted, *cell) for cell in cells]
    assert mean(ratios) > 1.05
    assert mean_length(0.9) > mean_length(0.4) + 3


def mean_length(rate: float) -> float:
    costs = costs_of(0.1, 1e6, streamed=False)
    return mean(
        each.length for each in play_rounds(DoubleDqn(MAX_LENGTH), lambda _: rate, lambda _: costs, 1000, 1)
    )


def test_it_beats_the_heuristic_of_qs() -> None:
    def speed(make: Callable[[int], LengthPolicy]) -> list[float]:
        return [
            tokens_per_s(play_rounds(make(MAX_LENGTH), lambda _: rate, lambda _: costs, 2000, 1))  # noqa: B023
            for rate in (0.4, 0.6, 0.8, 0.9)
            for costs in [costs_of(0.05, 1e6, streamed=False)]
        ]

    assert all(
        own > other
        for own, other in zip(speed(lambda longest: BestLength()), speed(LastAccepted), strict=True)
    )
