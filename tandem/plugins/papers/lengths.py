"""Policies of papers for the length of proposals: FlexSpec's, a heuristic and a learned one of QS (arXiv 2507.00605).

As `decoding.length_policy = "best"`, `"last_accepted"` or `"double_dqn"`. Each proposes at least one token. They
suit the pacing stop_and_wait, whose rounds the first and the last measure, and QS's suit pipelined, too.

The learned policy is a double deep Q-network, here its values in numpy. State (QS IV-B): the drafter's probabilities
of the last 64 accepted tokens, their mean, the newest one, and the link.
Action: a length from 1. Trained in a simulator with QS's reward (docs/explanation/speculative.md).

NOT in the paper: the link is told as log(fixed_s / token_s), on which alone the best length depends, so that one
network serves every link; the hidden layers have 32 and 16 units, so that the weights take 6 kB; the measured
acceptance rate stands for the drafter's probabilities. The codec is not chosen. FlexSpec's policy needs no training,
and is better where the acceptance stays as it is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise, repeat
from math import isnan, log, nan, prod
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import ConfigError

FIRST_LENGTH = 4
"""Tokens of a proposal before anything is known."""
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 2.0
"""Before any verdict, as if so many tokens had been decided with that rate."""
KEPT_SHARE = 0.98
"""What remains of earlier evidence per decided token: about 50 count."""
TIME_SHARE = 0.2
"""Weight of a new time in the moving averages."""
MIN_S = 1e-6
"""Times are at least this, or the ratio of two would have no bound."""


class Rounds:
    """The rounds of one query. Times are nan until two rounds have ended; the first one waits for documents, too.

    A round proposes K tokens and commits those that are accepted and one more. It lasts fixed_s + K * token_s
    (FlexSpec Eq. 7 to 10); what grows with K is the drafting here, since ids take few bytes. One proposal is on its way
    at a time. NOT in the papers: the rate is that of the tokens that were decided, up to the first rejected one.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """now_s: the clock."""
        self._now_s = now_s
        self._begun_s = nan
        self._accepted, self._decided = PRIOR_RATE * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._has_ended = False
        self.fixed_s = self.token_s = nan

    @property
    def rate(self) -> float:
        """Probability that a token is accepted if those before it in its proposal are."""
        return self._accepted / self._decided

    @property
    def is_known(self) -> bool:
        """Whether times are known."""
        return not isnan(self.fixed_s)

    def begin(self) -> None:
        """A proposal is drafted from now on."""
        self._begun_s = self._now_s()

    def end(self, length: int, num_accepted: int, draft_s: float) -> None:
        """A verdict, as of `LengthPolicy.observe`."""
        for position in range(min(num_accepted + 1, length)):
            self._accepted = KEPT_SHARE * self._accepted + (position < num_accepted)
            self._decided = KEPT_SHARE * self._decided + 1.0
        if self._has_ended and length:
            lasted_s = self._now_s() - self._begun_s
            self.fixed_s = _average(self.fixed_s, max(lasted_s - draft_s, MIN_S))
            self.token_s = _average(self.token_s, max(draft_s / length, MIN_S))
        self._has_ended = True


def _average(before: float, value: float) -> float:
    return value if isnan(before) else before + TIME_SHARE * (value - before)


def tokens_per_s(rate: float, fixed_s: float, token_s: float, max_length: int) -> list[float]:
    """Committed tokens per second, by the length of proposals, [max_length + 1].

    NOT in the paper: a round is worth 1 + a + ... + a^K tokens for an acceptance rate a. The count of
    FlexSpec Algorithm 2, 1 + a K, makes either 1 or the longest length best in every situation.
    """
    worth = accumulate(accumulate(repeat(rate, max_length), mul), initial=1.0)
    return [tokens / (fixed_s + length * token_s) for length, tokens in enumerate(worth)]


class BestLength:
    """The length with the most tokens per second, from 1 up, for the pacing stop_and_wait."""

    def __init__(self, max_length: int, rounds: Callable[[], Rounds] = Rounds) -> None:
        """max_length: tokens of a proposal, at most. rounds: makes what measures."""
        self._max_length = max_length
        self._rounds = rounds()

    def choose(self) -> int:
        """A few until times are known; the shortest of equals."""
        rounds = self._rounds
        rounds.begin()
        if not rounds.is_known:
            return min(FIRST_LENGTH, self._max_length)
        speeds = tokens_per_s(rounds.rate, rounds.fixed_s, rounds.token_s, self._max_length)
        return speeds.index(max(speeds[1:]), 1)

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """Measures the round."""
        self._rounds.end(length, num_accepted, draft_s)


# --8<-- [start:policy]
class LastAccepted:
    """The heuristic that QS compares with: one token more after a full acceptance, else as many as were accepted."""

    def __init__(self, max_length: int, first: int = FIRST_LENGTH) -> None:
        """max_length: tokens of a proposal, at most. first: the length of the first one."""
        self._max_length = max_length
        self._length = first

    def choose(self) -> int:
        """The length, at least 1: from 0 it would never come back."""
        return max(1, min(self._length, self._max_length))

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """Adapts to the last verdict."""
        self._length = length + 1 if num_accepted == length else num_accepted


# --8<-- [end:policy]


WEIGHTS = Path(__file__).with_name("double_dqn.npy")
"""The trained weights: float16, all layers in a row."""
NUM_CONFIDENCES, MAX_LENGTH = 64, 16
LAYERS = (NUM_CONFIDENCES + 3, 32, 16, MAX_LENGTH)
"""Units: of the state, the hidden layers, and one value for each length from 1."""
SHAPES = tuple(shape for size, after in pairwise(LAYERS) for shape in ((size, after), (after,)))
"""A matrix and a bias for each layer."""


class DoubleDqn:
    """The length with the largest value."""

    def __init__(
        self, max_length: int, weights: str = str(WEIGHTS), rounds: Callable[[], Rounds] = Rounds
    ) -> None:
        """max_length: tokens of a proposal, at most. weights: a file, as `pack` made it. rounds: makes what measures.

        Raises ConfigError if there is no such file.
        """
        self._max_length = max_length
        self._weights = load_weights(Path(weights))
        self._confidences = deque[float](maxlen=NUM_CONFIDENCES)
        self._rounds = rounds()

    def choose(self) -> int:
        """The length from 1 to max_length, a few until times are known; the shortest of equals."""
        self._rounds.begin()
        if not self._rounds.is_known:
            return min(FIRST_LENGTH, self._max_length)
        action_values = values(self._weights, make_state(self._confidences, self._rounds))
        return 1 + int(np.argmax(action_values[: self._max_length]))

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """Measures the round, and keeps how sure a drafter was of the tokens that were accepted."""
        self._confidences.extend([self._rounds.rate] * num_accepted)
        self._rounds.end(length, num_accepted, draft_s)


def make_state(confidences: Sequence[float] | deque[float], rounds: Rounds) -> NDArray[np.float32]:
    """[LAYERS[0]]. confidences: of accepted tokens, the newest last, at most NUM_CONFIDENCES; zeros stand before."""
    state = np.zeros(LAYERS[0], np.float32)
    if confidences:
        state[NUM_CONFIDENCES - len(confidences) : NUM_CONFIDENCES] = confidences
        state[NUM_CONFIDENCES] = sum(confidences) / len(confidences)
        state[NUM_CONFIDENCES + 1] = confidences[-1]
    state[-1] = log(rounds.fixed_s / rounds.token_s)
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
