"""A next-token distribution over the vocabulary, stored sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-9
"""How far the sum of a distribution may lie from one; rounding stays below n * 2**-53."""


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A distribution over token ids. Its arrays are read-only: all parties rely on their bits.

    Raises ValueError if the ids are not strictly ascending and non-negative, if the lengths differ, or if
    the probabilities are negative, not finite, or do not sum to one.
    """

    ids: NDArray[np.int64]  # [n] token ids, strictly ascending, n >= 1
    probabilities: NDArray[np.float64]  # [n], >= 0, sum 1

    def __post_init__(self) -> None:
        """Checks the arrays and makes them read-only."""
        ids = _read_only(np.asarray(self.ids, dtype=np.int64))
        probabilities = _read_only(np.asarray(self.probabilities, dtype=np.float64))
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "probabilities", probabilities)
        if ids.ndim != 1 or ids.shape != probabilities.shape or ids.size == 0:
            raise ValueError(
                f"a distribution needs a probability per id, got {probabilities.shape} for {ids.shape}"
            )
        if ids[0] < 0 or bool((ids[1:] <= ids[:-1]).any()):
            raise ValueError("the ids of a distribution must be non-negative and strictly ascending")
        if not (probabilities.min() >= 0.0 and abs(float(probabilities.sum()) - 1.0) <= TOLERANCE):
            raise ValueError(
                f"a distribution must have probabilities >= 0 of sum 1, got sum {probabilities.sum()}"
            )

    def __len__(self) -> int:
        """Size of the support as stored."""
        return int(self.ids.size)

    def __eq__(self, other: object) -> bool:
        """Whether two distributions are the same bit for bit."""
        if not isinstance(other, Distribution):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.probabilities, other.probabilities)

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash((self.ids.tobytes(), self.probabilities.tobytes()))

    def argmax(self) -> int:
        """The most probable token; of equally probable ones the lowest id."""
        return int(self.ids[np.argmax(self.probabilities)])

    def probability(self, token: int) -> float:
        """Probability of one token; 0 outside the support."""
        position = int(np.searchsorted(self.ids, token))
        if position == self.ids.size or int(self.ids[position]) != token:
            return 0.0
        return float(self.probabilities[position])

    def on(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities at the given ascending ids, [m]; they must contain the whole support."""
        out = np.zeros(ids.size)
        out[np.searchsorted(ids, self.ids)] = self.probabilities
        return out

    def dense(self, vocab: int) -> NDArray[np.float64]:
        """The distribution as an array [vocab]; IndexError if an id does not fit."""
        out = np.zeros(vocab)
        out[self.ids] = self.probabilities
        return out


def union(first: Distribution, second: Distribution) -> NDArray[np.int64]:
    """Ids in the support of either distribution, ascending, [n]."""
    if np.array_equal(first.ids, second.ids):
        return first.ids
    both = np.sort(np.concatenate([first.ids, second.ids]), kind="stable")  # two runs: merged in linear time
    is_new = np.ones(both.size, dtype=bool)
    is_new[1:] = both[1:] != both[:-1]
    return both[is_new]


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written; the caller's own array stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view
