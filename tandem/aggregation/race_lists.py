"""Race lists: a vote as the K tokens that score best in the race, and when such lists are enough to name its winner.

With coupled drafts (Daliri, Musco and Suresh, arXiv 2408.07978) every voter knows the noise E(seed, step, x), so it can
send its K best tokens by p(x) / E(x) instead of its K most probable ones. The winner of the race of the full,
uncompressed mixture sum_i w_i p_i is then nearly always certain from the lists alone. The bound on what a list lacks is
that of the algorithm NRA (Fagin, Lotem and Naor, "Optimal aggregation algorithms for middleware", 2003), and CONCORD
certifies greedy tokens likewise (Hu et al., arXiv 2606.15179). NOT in these: scores carry the noise of a draw, so the
certified winner is an exact sample.

The values are float32 probabilities of the full distribution; that rounding is part of its definition. A score is
(w_1 p_1(x) + w_2 p_2(x) + ...) / E(x), summed in the order of the voters. Ties go to the lowest id. At temperature 0
the race is without noise: E = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.coupling import best_scores, noise
from tandem.aggregation.distributions import largest

ESCALATION = 4
"""How many times as many tokens a voter adds to its list where the present ones leave the winner open."""
SHORTLIST = 16
"""Tokens of a distribution that is known in full with which a race is tried first: all of them are rarely needed."""
_SLACK = 1.0 + 1e-12
"""Far more than the rounding of a bound, which is summed in another order than a score."""


@dataclass(frozen=True, slots=True, eq=False)
class RaceList:
    """One voter's best tokens by score in one step's race.

    Raises ValueError unless the ids are strictly ascending and the values, one for each, lie in (0, 1].
    """

    ids: NDArray[np.int64]  # [n], strictly ascending, n <= K
    values: NDArray[np.float32]  # [n], p of each, in (0, 1]
    depth: int  # K, how many were asked for; a list of fewer has every token with p > 0

    def __post_init__(self) -> None:
        """Checks the arrays."""
        if self.ids.size > self.depth or self.ids.shape != self.values.shape:
            raise ValueError(f"a race list has up to {self.depth} ids with a value each, got {self.ids.size}")
        if self.values.dtype != np.float32 or not (
            np.minimum.reduce(self.values, initial=1.0) > 0.0
            and np.maximum.reduce(self.values, initial=1.0) <= 1.0
        ):
            raise ValueError("the values of a race list must be float32 numbers in (0, 1]")
        if np.minimum.reduce(self.ids[:1], initial=0) < 0 or np.logical_or.reduce(
            self.ids[1:] <= self.ids[:-1]
        ):
            raise ValueError("the ids of a race list must be non-negative and strictly ascending")

    @property
    def is_complete(self) -> bool:
        """Whether every token that is not in the list has p = 0."""
        return self.ids.size < self.depth

    @property
    def next_depth(self) -> int:
        """K of the list to ask for if these tokens leave the winner open."""
        return (1 + ESCALATION) * self.depth

    def beyond(self, shorter: RaceList) -> RaceList:
        """The tokens that a shorter list of the same race lacks: all that has to be sent after it."""
        is_new = ~np.isin(self.ids, shorter.ids)
        return RaceList(self.ids[is_new], self.values[is_new], self.depth - shorter.depth)

    def joined(self, more: RaceList) -> RaceList:
        """Undoes `beyond`. ValueError if both have the same token."""
        ids, values = np.append(self.ids, more.ids), np.append(self.values, more.values)
        order = np.argsort(ids, kind="stable")
        return RaceList(ids[order], values[order], self.depth + more.depth)


RaceVote: TypeAlias = RaceList | NDArray[np.float32]
"""One voter's distribution, as far as it is here: its best tokens, or all of it, [vocab]."""


class Race(TypedDict):
    """A race by the noise that it has."""

    seed: int
    step: int
    temperature: float  # 0: it has none


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The outcome that some race lists prove for the race of the mixture."""

    winner: int  # the token with the highest known score
    is_certain: bool  # whether it wins the race of the full mixture


def race_list(
    dense: NDArray[np.floating], depth: int, *, seed: int, step: int, temperature: float
) -> RaceList:
    """A voter's list. dense: p [vocab], normalised, of which the float32 values count. depth: K >= 1.

    Of equal scores the lowest ids come first.
    """
    values = np.asarray(dense, dtype=np.float32)
    if temperature == 0.0:
        ids = largest(values, min(depth, values.size))
        ids = ids[values[ids] > 0.0]
    else:
        ids, _ = best_scores(values, depth, seed=seed, step=step)
    return RaceList(ids, values[ids], depth)


def certify(
    lists: Sequence[RaceList], shares: Sequence[float], *, seed: int, step: int, temperature: float
) -> RaceResult:
    """The token with the highest known score, and whether no other can beat it.

    lists, shares: of each voter, in the order of the topology; shares w_i >= 0. Lists may differ in depth: a voter that
    certifies can use a longer one of its own. Let lo(x) be a token's known score, and hi(x) that with the last score of
    each list that lacks x. The best by lo is certain if lo is above hi(x) of every other token that some list lacks.

    No unlisted token can win then; it has at most U, the sum of all last scores. If a token other than the best is in
    one unfinished list and not in another, its hi is at least U. Else these lists hold the same tokens, the best one
    apart: any of them, or the best itself where it stands alone, is known in full, and has at least U.
    """
    ids = _union(lists)
    clocks = noise(seed, step, ids) if temperature else np.ones(ids.size)
    mixture, missing = np.zeros(ids.size), np.zeros(ids.size)
    for each, share in zip(lists, shares, strict=True):
        places = ids.searchsorted(each.ids)
        weighted = share * each.values.astype(np.float64)
        mixture[places] += weighted
        if not each.is_complete:
            is_missing = np.ones(ids.size, dtype=bool)
            is_missing[places] = False
            missing[is_missing] += np.minimum.reduce(weighted / clocks[places])
    lowest = mixture / clocks
    best = int(lowest.argmax())
    # Where nothing is missing, argmax has settled ties.
    highest = np.where(missing > 0.0, (lowest + missing) * _SLACK, 0.0)
    highest[best] = 0.0
    return RaceResult(int(ids[best]), bool(lowest[best] > np.maximum.reduce(highest)))


def _union(lists: Sequence[RaceList]) -> NDArray[np.int64]:
    """The tokens that any list has, ascending."""
    ids = np.concatenate([each.ids for each in lists])
    ids.sort()
    is_first = np.ones(ids.size, dtype=bool)
    np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
    return ids[is_first]


def decide_race(
    votes: Sequence[RaceVote],
    shares: Sequence[float],
    *,
    seed: int,
    step: int,
    temperature: float,
    shortlists: Sequence[RaceList] | None = None,
) -> RaceResult:
    """Decide a race like `certify`, with votes known in full, such as the own one of a voter that decides.

    Certain if none is a list. votes, shares: of each voter, in the order of the topology. shortlists: of each vote, as
    `shortlist_of` makes them, where the caller has them.
    """
    if shortlists is None:
        shortlists = [shortlist_of(vote, seed=seed, step=step, temperature=temperature) for vote in votes]
    outcome = certify(shortlists, shares, seed=seed, step=step, temperature=temperature)
    if outcome.is_certain or all(isinstance(vote, RaceList) for vote in votes):
        return outcome
    whole = [vote if isinstance(vote, RaceList) else whole_list(vote) for vote in votes]
    return certify(whole, shares, seed=seed, step=step, temperature=temperature)


def shortlist_of(vote: RaceVote, *, seed: int, step: int, temperature: float) -> RaceList:
    """A list as it is; of a vote in full its best tokens, which mostly do."""
    if isinstance(vote, RaceList):
        return vote
    return race_list(vote, SHORTLIST, seed=seed, step=step, temperature=temperature)


def whole_list(values: NDArray[np.float32]) -> RaceList:
    """The list of all tokens with a probability above zero. values: [vocab]."""
    ids = np.flatnonzero(values)
    return RaceList(ids, values[ids], ids.size + 1)


def least_depth(first: int) -> int:
    """The shortest that a list may become whose first length was `first`, and which every list of a query has."""
    return max(1, first // 2)


def most_probable(
    vote: RaceVote, token: int, depth: int, *, seed: int, step: int, temperature: float
) -> float:
    """The probability that a vote gives a token; where its list lacks it, the most that it can be.

    Of a list no more than its best `depth` tokens count, which it has at least: how many it has beyond these depends on
    what was asked for before, and the result does not.
    """
    if not isinstance(vote, RaceList):
        return float(vote[token])
    scores, clock = vote.values.astype(np.float64), 1.0
    if temperature:
        scores /= noise(seed, step, vote.ids)
        clock = float(noise(seed, step, np.array([token]))[0])
    best = np.argsort(-scores, kind="stable")[:depth]
    listed = best[vote.ids[best] == token]
    if listed.size:
        return float(vote.values[listed[0]])
    if best.size < depth:  # the list is complete
        return 0.0
    return max(
        0.0, min(1.0 - float(vote.values[best].sum(dtype=np.float64)), clock * float(scores[best[-1]]))
    )


def leader(shortlist: RaceList, *, seed: int, step: int, temperature: float) -> int:
    """The token that wins the voter's own race: its draft. shortlist: of its vote, or a longer list."""
    scores = shortlist.values.astype(np.float64)
    if temperature:
        scores /= noise(seed, step, shortlist.ids)
    return int(shortlist.ids[scores.argmax()])
