"""QS (arXiv 2507.00605): its lattice, its heuristic for the length of proposals, and its learned policy for it.

As `codec.name = "lattice"`, and `decoding.length_policy = "last_accepted"` or `"double_dqn"`. Both policies propose at
least one token, so they suit the pacings stop_and_wait and pipelined.

The learned policy is a double deep Q-network, here its values in numpy. State (QS IV-B): the drafter's probabilities
of the last 64 accepted tokens, their mean, the newest one, and the link.
Action: a length from 1. Trained in the simulator with QS's reward (docs/explanation/speculative.md).

NOT in the paper: the link is told as log(fixed_s / token_s), on which alone the best length depends, so that one
network serves every link; the hidden layers have 32 and 16 units, so that the weights take 6 kB; where the drafter's
probabilities are not known, the estimated acceptance rate stands for them. The codec is not chosen.
`tandem.scheduler.lengths.BestLength` needs no training, may propose nothing, and is better where the acceptance stays
as it is (`benchmarks/proposal_length.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import log, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import ConfigError
from tandem.plugins.papers.lattice import Lattice as Lattice
from tandem.scheduler.lengths import MAX_LENGTH, RoundCosts

WEIGHTS = Path(__file__).with_name("double_dqn.npy")
"""The trained weights: float16, all layers in a row."""
NUM_CONFIDENCES = 64
LAYERS = (NUM_CONFIDENCES + 3, 32, 16, MAX_LENGTH)
"""Units: of the state, the hidden layers, and one value for each length from 1."""
SHAPES = tuple(shape for size, after in pairwise(LAYERS) for shape in ((size, after), (after,)))
"""A matrix and a bias for each layer."""


# --8<-- [start:policy]
class LastAccepted:
    """The heuristic that QS compares with: one token more after a full acceptance, else as many as were accepted."""

    def __init__(self, max_length: int, first: int = 4) -> None:
        """max_length: tokens of a proposal, at most. first: the length of the first one."""
        self._max_length = max_length
        self._length = first

    def choose(self, rates: Sequence[float], costs: RoundCosts, error: float = 0.0) -> int:
        """The length, at least 1: from 0 it would never come back."""
        return max(1, min(self._length, self._max_length))

    def observe(self, length: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """Adapts to the last verdict."""
        self._length = length + 1 if num_accepted == length else num_accepted


# --8<-- [end:policy]


class DoubleDqn:
    """The length with the largest value. Without state of its own but the confidences of one session."""

    def __init__(self, max_length: int, weights: str = str(WEIGHTS)) -> None:
        """max_length: tokens of a proposal, at most. weights: a file, as `pack` made it. Raises ConfigError if not."""
        self._max_length = max_length
        self._weights = load_weights(Path(weights))
        self._confidences = deque[float](maxlen=NUM_CONFIDENCES)
        self._rate = 0.0  # as last estimated

    def choose(self, rates: Sequence[float], costs: RoundCosts, error: float = 0.0) -> int:
        """The length from 1 to max_length; the shortest of equals."""
        self._rate = rates[0]
        found = values(self._weights, make_state(self._confidences, costs))
        return 1 + int(np.argmax(found[: self._max_length]))

    def observe(self, length: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """Keeps what the drafter thought of the tokens that were accepted."""
        self._confidences.extend((confidences or [self._rate] * length)[:num_accepted])


def make_state(confidences: Sequence[float] | deque[float], costs: RoundCosts) -> NDArray[np.float32]:
    """[LAYERS[0]]. confidences: of accepted tokens, the newest last, at most NUM_CONFIDENCES; zeros stand before."""
    state = np.zeros(LAYERS[0], np.float32)
    if confidences:
        state[NUM_CONFIDENCES - len(confidences) : NUM_CONFIDENCES] = confidences
        state[NUM_CONFIDENCES] = sum(confidences) / len(confidences)
        state[NUM_CONFIDENCES + 1] = confidences[-1]
    state[-1] = log(costs.fixed_s / costs.token_s)
    return state


def values(weights: Sequence[Any], states: Any) -> Any:
    """The value of each length from 1, [..., MAX_LENGTH]. states: [..., LAYERS[0]]; arrays of numpy or tensors."""
    *hidden, last = zip(weights[::2], weights[1::2], strict=True)
    for matrix, bias in hidden:
        states = (states @ matrix + bias).clip(0.0, None)
    return states @ last[0] + last[1]


def pack(weights: Sequence[NDArray[Any]]) -> NDArray[np.float16]:
    """The content of a file."""
    return np.concatenate([np.ravel(each) for each in weights]).astype(np.float16)


@cache
def load_weights(path: Path) -> tuple[NDArray[np.float32], ...]:
    """Matrix and bias of each layer, by SHAPES. Raises ConfigError."""
    sizes = [prod(shape) for shape in SHAPES]
    try:
        flat = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The weights of the learned policy cannot be read from {path} ({error})."
        ) from error
    if flat.shape != (sum(sizes),):
        raise ConfigError(
            f"The weights of the learned policy are {sum(sizes)} numbers, but {path} has shape {flat.shape}; "
            "give a file of that size."
        )
    parts = np.split(flat.astype(np.float32), np.cumsum(sizes)[:-1])
    return tuple(part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True))
