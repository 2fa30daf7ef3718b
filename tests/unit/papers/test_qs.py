"""QS's policies of proposal lengths, loaded as one's own are; the network's state and file, and that it is of use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from tandem.errors import ConfigError
from tandem.plugins.papers.qs import (
    MAX_LENGTH,
    NUM_CONFIDENCES,
    SHAPES,
    DoubleDqn,
    LastAccepted,
    pack,
)
from tandem.plugins.papers.rounds import Rounds
from tests.unit.papers.paced import Clock, play


def rounds_of(fixed_s: float, token_s: float) -> Rounds:
    """Times that are known."""
    rounds = Rounds(Clock())
    rounds.fixed_s, rounds.token_s = fixed_s, token_s
    return rounds


def test_only_accepted_tokens_count(tmp_path: Path) -> None:
    """Weights under which the sum of the confidences decides: above two 9 tokens, else 2."""
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    weights[0][:NUM_CONFIDENCES, 0] = weights[2][0, 0] = 1.0
    weights[4][0, 8], weights[5][1] = 1.0, 2.0
    np.save(tmp_path / "sum.npy", pack(weights))

    def chosen(num_accepted: int) -> int:
        policy = DoubleDqn(MAX_LENGTH, str(tmp_path / "sum.npy"), lambda: rounds_of(0.2, 0.02))
        policy.choose()
        policy.observe(4, num_accepted, 0.04)
        return policy.choose()

    assert [chosen(num_accepted) for num_accepted in (0, 2, 4)] == [2, 2, 9]


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(5, np.float16))
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(ConfigError, match=r"are \d+ numbers, but .*short.npy has shape \(5,\)"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "short.npy"))
    with pytest.raises(ConfigError, match=r"cannot be read from .*text.npy"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "text.npy"))
    with pytest.raises(ConfigError, match=r"cannot be read from .*none.npy"):
        DoubleDqn(MAX_LENGTH, str(tmp_path / "none.npy"))


def learned(max_length: int, rounds: Callable[[], Rounds]) -> DoubleDqn:
    return DoubleDqn(max_length, rounds=rounds)


def test_it_has_learned_more_than_the_heuristic_does() -> None:
    """Over links and rates at which lengths from 1 to the longest are best; and longer proposals at higher rates."""
    cells = [(rate, fixed_s) for rate in (0.4, 0.6, 0.8, 0.9) for fixed_s in (0.05, 0.13, 0.33)]
    ratios = [
        play(learned, *cell)[0] / play(lambda longest, _: LastAccepted(longest), *cell)[0] for cell in cells
    ]
    assert mean(ratios) > 1.05
    assert mean(play(learned, 0.9, 0.13)[1]) > mean(play(learned, 0.4, 0.13)[1]) + 3
