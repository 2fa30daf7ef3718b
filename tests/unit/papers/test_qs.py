"""QS's policies of proposal lengths, loaded as one's own are; the network's state and file, and that it is of use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from tandem.errors import ConfigError
from tandem.plugins.papers.qs import (
    LAYERS,
    NUM_CONFIDENCES,
    SHAPES,
    WEIGHTS,
    DoubleDqn,
    LastAccepted,
    make_state,
    pack,
    values,
)
from tandem.scheduler.lengths import (
    MAX_LENGTH,
    BestLength,
    LengthPolicy,
    RoundCosts,
    load_length_policy,
    make_length_policy,
)
from tests.unit.papers.rounds import costs_of, play_rounds, tokens_per_s

COSTS = RoundCosts(fixed_s=0.2, token_s=0.02, alone_s=0.1)


def weights_that_prefer(length: int) -> list[np.ndarray]:
    """Whatever the state."""
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    weights[-1][length - 1] = 1.0
    return weights


def test_the_state_is_that_of_the_paper_and_the_link() -> None:
    state = make_state([0.5, 0.9], COSTS)
    assert state.shape == (LAYERS[0],)
    assert state[NUM_CONFIDENCES - 2 :] == pytest.approx([0.5, 0.9, 0.7, 0.9, np.log(10)])
    assert not state[: NUM_CONFIDENCES - 2].any()
    assert make_state([], COSTS)[:-1].any() == np.False_


def test_the_length_of_the_largest_value_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "seven.npy"
    np.save(file, pack(weights_that_prefer(7)))
    assert DoubleDqn(MAX_LENGTH, str(file)).choose([0.5] * MAX_LENGTH, COSTS) == 7
    assert DoubleDqn(4, str(file)).choose([0.5] * 4, COSTS) == 1, "among the lengths that are allowed"


def test_every_layer_but_the_last_is_cut_at_zero() -> None:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    state = rng.normal(size=LAYERS[0])
    hidden = np.maximum(0, state @ weights[0] + weights[1])
    hidden = np.maximum(0, hidden @ weights[2] + weights[3])
    assert values(weights, state) == pytest.approx(hidden @ weights[4] + weights[5])
    assert values(weights, np.stack([state, state])).shape == (2, MAX_LENGTH)


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


def test_the_file_is_small() -> None:
    assert WEIGHTS.stat().st_size < 10_000


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


def test_the_heuristic_never_gets_stuck() -> None:
    heuristic = LastAccepted(MAX_LENGTH, first=4)
    heuristic.observe(4, 0)
    assert heuristic.choose([0.5] * MAX_LENGTH, costs_of(0.1, 1e6)) == 1
    heuristic.observe(1, 1)
    assert heuristic.choose([0.5] * MAX_LENGTH, costs_of(0.1, 1e6)) == 2
    for length in range(2, 40):
        heuristic.observe(length, length)
    assert heuristic.choose([0.5] * MAX_LENGTH, costs_of(0.1, 1e6)) == MAX_LENGTH


@pytest.mark.parametrize("policy", [LastAccepted, DoubleDqn])
def test_settings_load_them(policy: type) -> None:
    address = f"tandem.plugins.papers.qs:{policy.__name__}"
    load_length_policy(address, {}, "This process")
    assert type(make_length_policy(address, 3)) is policy
