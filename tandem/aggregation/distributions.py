"""A next-token distribution over the vocabulary, stored sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.config.schema import SamplingParams

TOLERANCE = 1e-9
"""How far the sum of a distribution may lie from one; rounding stays below n * 2**-53."""


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A distribution over token ids. Its arrays are read-only: all parties rely on their bits.

    Raises ValueError if the ids are not strictly ascending and non-negative, if the lengths differ, if a probability
    or the rest is negative or not finite, if all of them do not sum to one, or if there is no token for the rest.
    """

    ids: NDArray[np.int64]  # [n] token ids, strictly ascending, n >= 1
    probabilities: NDArray[np.float64]  # [n], >= 0; with `rest` of sum 1
    rest: float = 0.0  # mass spread evenly over all other tokens
    vocab_size: int = 0  # ids lie below it; 0: not known, which goes with a rest of 0 only

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
        if ids[0] < 0 or np.logical_or.reduce(ids[1:] <= ids[:-1]):
            raise ValueError("the ids of a distribution must be non-negative and strictly ascending")
        total = float(np.add.reduce(probabilities)) + self.rest
        if not (
            np.minimum.reduce(probabilities) >= 0.0 and self.rest >= 0.0 and abs(total - 1.0) <= TOLERANCE
        ):
            raise ValueError(f"a distribution must have probabilities >= 0 of sum 1, got sum {total}")
        if (self.vocab_size or self.rest) and not self._fits(int(ids[-1])):
            raise ValueError(
                f"a distribution with ids up to {ids[-1]} and a rest of {self.rest:g} does not fit a vocabulary of "
                f"{self.vocab_size} tokens"
            )

    def _fits(self, highest: int) -> bool:
        return highest < self.vocab_size and (not self.rest or self.ids.size < self.vocab_size)

    def __len__(self) -> int:
        """Size of the support as stored."""
        return int(self.ids.size)

    def __eq__(self, other: object) -> bool:
        """Whether two distributions are the same bit for bit."""
        if not isinstance(other, Distribution):
            return NotImplemented
        return self._spread_rest == other._spread_rest and (
            np.array_equal(self.ids, other.ids) and np.array_equal(self.probabilities, other.probabilities)
        )

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash((self.ids.tobytes(), self.probabilities.tobytes(), self._spread_rest))

    @property
    def _spread_rest(self) -> tuple[float, int]:
        """The rest, and over how many tokens it is spread."""
        return (self.rest, self.vocab_size - self.ids.size) if self.rest else (0.0, 0)

    @property
    def rest_probability(self) -> float:
        """Probability of each token that is not among the ids."""
        return self.rest / (self.vocab_size - self.ids.size) if self.rest else 0.0

    def argmax(self) -> int:
        """The most probable token; of equally probable ones the lowest id."""
        if self.rest and self.rest_probability >= self.probabilities.max():
            return self.spread().argmax()
        # Five times as fast as the argmax of the numbers themselves, for 50,000 of them.
        return int(self.ids[np.argmax(self.probabilities == self.probabilities.max())])

    def probability(self, token: int) -> float:
        """Probability of one token; outside the ids that of the rest."""
        position = int(np.searchsorted(self.ids, token))
        if position == self.ids.size or int(self.ids[position]) != token:
            return self.rest_probability
        return float(self.probabilities[position])

    def on(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities at the given ascending ids, [m]; they must contain all ids of the distribution."""
        out = np.full(ids.size, self.rest_probability) if self.rest else np.zeros(ids.size)
        out[np.searchsorted(ids, self.ids)] = self.probabilities
        return out

    def rest_beyond(self, num_ids: int) -> float:
        """Mass of the tokens that are not among `num_ids` ids, which contain all ids of the distribution."""
        return self.rest_probability * (self.vocab_size - num_ids) if self.rest else 0.0

    def spread(self) -> Distribution:
        """This distribution without a rest: every token of the vocabulary has its own probability."""
        if not self.rest:
            return self
        ids = np.arange(self.vocab_size)
        return Distribution(ids, self.on(ids), vocab_size=self.vocab_size)

    def dense(self, vocab: int) -> NDArray[np.float64]:
        """The distribution as an array [vocab]; IndexError if an id does not fit."""
        out = np.zeros(vocab)
        if self.rest:
            out[: self.vocab_size] = self.rest_probability
        out[self.ids] = self.probabilities
        return out


def mix(first: Distribution, second: Distribution, first_share: float) -> Distribution:
    """first_share * first + (1 - first_share) * second, added in this order, on the ids of both.

    ValueError if both have a vocabulary and these differ.
    """
    ids = union(first, second)
    probabilities = first_share * first.on(ids) + (1.0 - first_share) * second.on(ids)
    if not (first.rest or second.rest):
        return Distribution(ids, probabilities)
    rests = first.rest_beyond(ids.size), second.rest_beyond(ids.size)
    rest = first_share * rests[0] + (1.0 - first_share) * rests[1]
    return Distribution(ids, probabilities, rest, common_vocab_size(first, second))


def common_vocab_size(first: Distribution, second: Distribution) -> int:
    """The size of their vocabulary, 0 if neither knows it. ValueError if they differ."""
    sizes = {first.vocab_size, second.vocab_size} - {0}
    if len(sizes) > 1:
        raise ValueError(
            f"two distributions must share a vocabulary, got {min(sizes)} and {max(sizes)} tokens"
        )
    return max(sizes, default=0)


def union(first: Distribution, second: Distribution) -> NDArray[np.int64]:
    """Ids of either distribution, ascending, [n]."""
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


# ---- The largest of many numbers, of equals those of the lowest places -------------------------------------


_GROUP, _FEW = 32, 256
_FIRST = 64
"""Tokens that are looked at first for a nucleus, which hardly ever has more."""


def most_probable(dense: NDArray[np.floating], ids: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """The `limit` most probable tokens of ascending `ids`, ascending; of equals the lowest ids."""
    if ids.size <= limit:
        return ids
    values = dense[ids]
    if ids.size <= _FEW:  # then sorting takes less than several passes
        return ids[np.sort(np.argsort(-values, kind="stable")[:limit])]
    least = float(np.partition(values, ids.size - limit)[ids.size - limit])
    is_kept = values > least
    ties = np.flatnonzero(values == least)
    is_kept[ties[: limit - int(is_kept.sum())]] = True
    return ids[is_kept]


def largest(values: NDArray[np.floating], limit: int) -> NDArray[np.int64]:
    """Places of the `limit` largest values [n], ascending; of equals the lowest places. 1 <= limit <= n.

    As fast as two comparisons per value unless most values are nearly equal.
    """
    size = min(_GROUP, values.size // (4 * limit))  # of a group, whose values lie num_groups apart
    if size < 2 or values.size <= _FEW:
        return most_probable(values, np.arange(values.size), limit)
    num_groups = values.size // size
    maxima = np.maximum.reduce(values[: size * num_groups].reshape(size, num_groups))
    least = np.partition(maxima, num_groups - limit)[
        num_groups - limit
    ]  # so many values are as large, or more
    return most_probable(values, np.flatnonzero(values >= least), limit)


# ---- What the sampling options leave of a distribution -----------------------------------------------------


def nucleus(weights: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Ids of the fewest most probable tokens that have at least this share of all weight [vocab], most probable first;
    ties to the lowest id (Holtzman et al., arXiv 1904.09751).
    """
    least, limit = share * float(weights.sum()), _FIRST
    while True:
        ids = largest(weights, min(limit, weights.size))
        ids = ids[np.argsort(-weights[ids], kind="stable")]
        reached = np.cumsum(weights[ids])
        if reached[-1] >= least or limit >= weights.size:
            return ids[: int(np.searchsorted(reached, least)) + 1]
        limit *= 8


def restrict(probabilities: NDArray[np.float64], sampling: SamplingParams) -> NDArray[np.float64]:
    """The distribution [vocab] without the tokens that `sampling` drops, renormalised; the same array if it drops none.

    top_k keeps the k most probable tokens, ties to the lowest id. top_p then keeps the `nucleus` of what is left. min_p
    drops tokens below that share of the largest probability (Nguyen et al., arXiv 2407.01082).
    """
    kept = np.ones(probabilities.size, dtype=bool)
    if 0 < sampling.top_k < probabilities.size:
        kept[:] = False
        kept[largest(probabilities, sampling.top_k)] = True
    if sampling.top_p < 1:
        whole = probabilities if kept.all() else np.where(kept, probabilities, 0.0)
        kept[:] = False
        kept[nucleus(whole, sampling.top_p)] = True
    if sampling.min_p:
        kept &= probabilities >= sampling.min_p * probabilities.max()
    if kept.all():
        return probabilities
    rest = np.where(kept, probabilities, 0.0)
    return np.asarray(rest / rest.sum())
