"""Random votes for the race of a mixture, and its winner the slow and obvious way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tandem.aggregation.coupling import noise
from tandem.aggregation.race_lists import RaceList, race_list


@dataclass(frozen=True)
class Case:
    """The votes of one step."""

    votes: list[np.ndarray]  # p of each voter, [vocab]
    shares: list[float]
    depths: list[int]  # of each voter's list
    seed: int
    step: int
    temperature: float

    @cached_property
    def clocks(self) -> np.ndarray:
        """E of every token, [vocab]."""
        ids = np.arange(self.votes[0].size)
        return noise(self.seed, self.step, ids) if self.temperature else np.ones(ids.size)

    @cached_property
    def lists(self) -> list[RaceList]:
        """What the voters send."""
        return [
            race_list(vote, depth, seed=self.seed, step=self.step, temperature=self.temperature)
            for vote, depth in zip(self.votes, self.depths, strict=True)
        ]

    def plain_lists(self) -> list[RaceList]:
        """The same by sorting all scores; faster for small vocabularies."""
        return [self._sorted(vote, depth) for vote, depth in zip(self.votes, self.depths, strict=True)]

    def _sorted(self, vote: np.ndarray, depth: int) -> RaceList:
        values = vote.astype(np.float32)
        order = np.argsort(-(values.astype(np.float64) / self.clocks), kind="stable")[:depth]
        ids = np.sort(order[values[order] > 0])
        return RaceList(ids, values[ids], depth)

    @cached_property
    def winner(self) -> int:
        """Of the full mixture; of equal scores the lowest id."""
        mixture = np.zeros(self.votes[0].size)
        for vote, share in zip(self.votes, self.shares, strict=True):
            mixture += share * vote.astype(np.float32).astype(np.float64)
        return int(np.argmax(mixture / self.clocks))


def random_case(rng: np.random.Generator, step: int) -> Case:
    """Up to 8 voters: similar, equal or disjoint ones, on a coarse grid with ties, with and without noise; some of
    them have the weight 0."""
    vocab, num_voters = int(rng.integers(2, 60)), int(rng.integers(1, 9))
    kind = rng.choice(["similar", "independent", "equal", "disjoint", "grid"])
    base = rng.dirichlet(np.full(vocab, rng.choice([0.1, 1.0, 10.0])))
    votes = []
    for voter in range(num_voters):
        own = rng.dirichlet(np.full(vocab, rng.choice([0.1, 1.0])))
        if kind == "similar":
            own = 0.8 * base + 0.2 * own
        elif kind == "equal":
            own = base
        elif kind == "disjoint":
            own = np.where(np.arange(vocab) % num_voters == voter % vocab, own + 1e-9, 0.0)
        elif kind == "grid":
            own = rng.multinomial(8, np.full(vocab, 1 / vocab)).astype(float)
        votes.append(own / own.sum() if own.sum() else base)
    is_even = kind == "grid" or rng.random() < 0.3
    shares = np.full(num_voters, 1 / num_voters) if is_even else rng.dirichlet(np.ones(num_voters))
    if num_voters > 1 and rng.random() < 0.25:
        shares[rng.integers(num_voters)] = 0.0
        shares /= shares.sum()
    temperature = float(rng.choice([0.0, 1.0])) if kind == "grid" else 1.0
    depths = rng.integers(1, 17, num_voters)
    if rng.random() < 0.5:
        depths[:] = depths[0]
    return Case(votes, shares.tolist(), depths.tolist(), int(rng.integers(1 << 32)), step, temperature)
