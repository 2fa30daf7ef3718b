"""Who drafts, who votes and who decides: the modes as rows of one table, and the check of a session against its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite

from tandem.errors import ConfigError, did_you_mean
from tandem.topology import PAIR, SERVER, Topology, alone, star

MAX_PROPOSAL = 16
"""Most tokens of one proposal."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one party does."""

    drafts: bool = False  # proposes tokens
    votes: bool = False  # contributes a distribution to the target
    weight: float | None = None  # its share of the target; None: by the log weight that comes with each vote
    decides: bool = False  # computes the target


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One row of the table: how many of each there may be, and what the votes look like. Pairs: least and most."""

    name: str
    num_drafters: tuple[float, float]
    num_voters: tuple[float, float]
    num_deciders: tuple[float, float]
    drafters_vote: bool  # else a drafter has no vote, and the answer does not depend on it
    weighs_by: tuple[
        str, ...
    ]  # "fixed": by the weights of the roles; "documents": by log weights in the votes
    max_proposal: int  # tokens of one proposal
    votes_follow: str  # what a vote is conditioned on: "own drafts", "proposal" or "committed prefix"
    crosses: str  # what crosses the links

    @property
    def has_bonus(self) -> bool:
        """Whether one pass over k proposed tokens yields k + 1 votes."""
        return self.votes_follow == "proposal"


MODES: tuple[Mode, ...] = (
    Mode(
        name="dual",
        num_drafters=(2, 2),
        num_voters=(2, 2),
        num_deciders=(1, 2),
        drafters_vote=True,
        weighs_by=("documents",),
        max_proposal=1,
        votes_follow="own drafts",
        crosses="distributions; verdicts, unless both decide",
    ),
    Mode(
        name="solo",
        num_drafters=(1, 1),
        num_voters=(1, 1),
        num_deciders=(1, 1),
        drafters_vote=True,
        weighs_by=("fixed",),
        max_proposal=1,
        votes_follow="committed prefix",
        crosses="nothing",
    ),
    Mode(
        name="speculative",
        num_drafters=(1, 1),
        num_voters=(1, 1),
        num_deciders=(1, 1),
        drafters_vote=False,
        weighs_by=("fixed",),
        max_proposal=MAX_PROPOSAL,
        votes_follow="proposal",
        crosses="proposed ids up; verdicts down",
    ),
    Mode(
        name="federated",
        num_drafters=(1, 1),
        num_voters=(2, inf),
        num_deciders=(1, 1),
        drafters_vote=False,
        weighs_by=("fixed", "documents"),
        max_proposal=MAX_PROPOSAL,
        votes_follow="proposal",
        crosses="proposals down, votes up, the verdict to all",
    ),
)
"""The table of modes."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The parties of a session and the role of each, in the topology's order."""

    mode: str
    topology: Topology
    roles: tuple[Role, ...]

    @cached_property
    def drafters(self) -> tuple[str, ...]:
        """Who proposes tokens."""
        return self._names([role.drafts for role in self.roles])

    @cached_property
    def voters(self) -> tuple[str, ...]:
        """Who contributes a distribution."""
        return self._names([role.votes for role in self.roles])

    @cached_property
    def deciders(self) -> tuple[str, ...]:
        """Who computes the target."""
        return self._names([role.decides for role in self.roles])

    @cached_property
    def weights(self) -> tuple[float | None, ...]:
        """The share of each voter, in order; None: by the log weights of the votes."""
        return tuple(role.weight for role in self.roles if role.votes)

    @cached_property
    def weighs_by_documents(self) -> bool:
        """Whether each vote comes with the log weight of its party's documents, which decides how much it counts."""
        return all(weight is None for weight in self.weights)

    def shares(self, voters: Sequence[int]) -> tuple[float, ...]:
        """How much each of these parties counts where weights are fixed: their weights, renormalised if some are lost.

        Half each, and so on, where all of them have weight 0. voters: indices of the topology, in order.
        """
        weights = [self.roles[voter].weight or 0.0 for voter in voters]
        if len(weights) == len(self.weights):
            return tuple(weights)
        total = sum(weights)
        return tuple(weight / total if total else 1.0 / len(weights) for weight in weights)

    def role(self, party: str) -> Role:
        """What `party` does. Raises ConfigError if it is none of the session."""
        return self.roles[self.topology.index(party)]

    def _names(self, flags: Sequence[bool]) -> tuple[str, ...]:
        return tuple(name for name, flag in zip(self.topology.parties, flags, strict=True) if flag)


def find_mode(name: str) -> Mode:
    """The row of that name. Raises ConfigError."""
    for mode in MODES:
        if mode.name == name:
            return mode
    names = [mode.name for mode in MODES]
    raise ConfigError(f"There is no mode {name!r}; {did_you_mean(name, names)}")


def check(roles: Roles) -> Roles:
    """The same, if its mode allows it. Raises ConfigError with one sentence that says what does not fit."""
    mode = find_mode(roles.mode)
    if len(roles.roles) != len(roles.topology.parties):
        raise ConfigError(
            f"Each of {len(roles.topology.parties)} parties needs a role (got {len(roles.roles)}); give that many."
        )
    _check_count(mode, "drafter", roles.drafters, mode.num_drafters)
    _check_count(mode, "voter", roles.voters, mode.num_voters)
    _check_count(mode, "decider", roles.deciders, mode.num_deciders)
    for name in roles.drafters:
        if (name in roles.voters) is not mode.drafters_vote:
            must = "has a vote" if mode.drafters_vote else "has no vote"
            raise ConfigError(
                f"In mode {mode.name} a drafter {must}, but {name} {_instead(must)}; change its role."
            )
    for name in roles.deciders:
        if name not in (*roles.voters, *roles.drafters):
            raise ConfigError(
                f"In mode {mode.name} a decider drafts or votes, but {name} does neither; change its role."
            )
    _check_weights(mode, roles)
    return roles


def dual(*, decides: str = "device") -> Roles:
    """DRAGON: both draft and both vote, by the weight of their documents. decides: a party, or "both"."""
    roles = tuple(Role(drafts=True, votes=True, decides=decides in (party, "both")) for party in PAIR.parties)
    return check(Roles(mode="dual", topology=PAIR, roles=roles))


def solo(party: str) -> Roles:
    """One party by itself."""
    role = Role(drafts=True, votes=True, weight=1.0, decides=True)
    return check(Roles(mode="solo", topology=alone(party), roles=(role,)))


def speculative() -> Roles:
    """The device drafts; the cloud's distribution alone is the target, and the cloud decides."""
    roles = (Role(drafts=True), Role(votes=True, weight=1.0, decides=True))
    return check(Roles(mode="speculative", topology=PAIR, roles=roles))


def federated(
    weights: Sequence[float], server: str = SERVER, workers: Sequence[str] = (), home: str = ""
) -> Roles:
    """A server drafts with a small model and decides; workers vote. weights: the share of each worker, of sum 1; none:
    by the log weights of their votes.

    workers: their names, "worker-1" and so on by default. home: who is asked, by default the server.
    """
    names = tuple(workers) or tuple(f"worker-{number}" for number in range(1, len(weights) + 1))
    shares: Sequence[float | None] = weights or [None] * len(names)
    votes = tuple(Role(votes=True, weight=weight) for weight in shares)
    return check(
        Roles(
            mode="federated",
            topology=star(server, names, home),
            roles=(Role(drafts=True, decides=True), *votes),
        )
    )


def _check_count(mode: Mode, what: str, names: Sequence[str], limits: tuple[float, float]) -> None:
    least, most = limits
    if not least <= len(names) <= most:
        allowed = (
            f"{least:g}"
            if least == most
            else f"{least:g} or more"
            if most == inf
            else f"{least:g} to {most:g}"
        )
        got = ", ".join(names) or "none"
        raise ConfigError(
            f"Mode {mode.name} has {allowed} {what}{'s' * (most != 1)} (got {got}); change the roles."
        )


def _check_weights(mode: Mode, roles: Roles) -> None:
    weights = roles.weights
    if roles.weighs_by_documents and "documents" in mode.weighs_by:
        return
    if "fixed" not in mode.weighs_by:
        raise ConfigError(
            f"In mode {mode.name} documents decide how much a party counts (got {_shown(weights)}); "
            "leave the weights out."
        )
    if not all(weight is not None and isfinite(weight) and weight >= 0.0 for weight in weights):
        raise ConfigError(
            f"In mode {mode.name} each voter has a weight of at least 0 (got {_shown(weights)}); give it."
        )
    if abs(sum(weight or 0.0 for weight in weights) - 1.0) > 1e-9:
        raise ConfigError(f"The weights of the voters have sum 1 (got {_shown(weights)}); scale them.")


def _shown(weights: Sequence[float | None]) -> str:
    return ", ".join("none" if weight is None else f"{weight:g}" for weight in weights)


def _instead(must: str) -> str:
    return "has none" if must == "has a vote" else "has one"
