"""Roles: who drafts, who votes and who decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tandem.aggregation.rules import limit_shares
from tandem.aggregation.rules import shares as log_shares
from tandem.topology import Topology


@dataclass(frozen=True, slots=True)
class Role:
    """The tasks of one party."""

    drafts: bool = False  # proposes tokens
    votes: bool = False  # contributes a distribution to the target
    weight: float | None = None  # its share of the target; None: by the log weight that comes with each vote
    decides: bool = False  # computes the target


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The parties of a session and the role of each, in the topology's order."""

    topology: Topology
    roles: tuple[Role, ...]

    @cached_property
    def drafters(self) -> tuple[str, ...]:
        """The parties that propose tokens."""
        return self._names([role.drafts for role in self.roles])

    @cached_property
    def voters(self) -> tuple[str, ...]:
        """The parties that contribute a distribution."""
        return self._names([role.votes for role in self.roles])

    @cached_property
    def deciders(self) -> tuple[str, ...]:
        """The parties that compute the target."""
        return self._names([role.decides for role in self.roles])

    @cached_property
    def weights(self) -> tuple[float | None, ...]:
        """The share of each voter, in order; None: by the log weights of the votes."""
        return tuple(role.weight for role in self.roles if role.votes)

    @cached_property
    def weighs_by_documents(self) -> bool:
        """Whether each vote comes with the log weight of its party's documents, which decides how much it counts."""
        return all(weight is None for weight in self.weights)

    def shares(
        self, voters: Sequence[int], log_weights: Sequence[float] = (), max_peer_share: float = 1.0
    ) -> tuple[float, ...]:
        """How much each of these parties counts (eta), of sum 1. voters: indices of the topology, in order.

        By the log weights of their votes, of which nobody's but the home's counts more than `max_peer_share`; where
        weights are fixed, by these, renormalised if some are lost: half each, and so on, where all have weight 0.
        """
        if self.weighs_by_documents:
            home = self.topology.index(self.topology.home)
            most = [1.0 if voter == home else max_peer_share for voter in voters]
            return limit_shares(log_shares(*log_weights), most)
        weights = [self.roles[voter].weight or 0.0 for voter in voters]
        if len(weights) == len(self.weights):
            return tuple(weights)
        total = sum(weights)
        return tuple(weight / total if total else 1.0 / len(weights) for weight in weights)

    def role(self, party: str) -> Role:
        """The role of `party`. Raises ConfigError if it is none of the session."""
        return self.roles[self.topology.index(party)]

    def _names(self, flags: Sequence[bool]) -> tuple[str, ...]:
        return tuple(name for name, flag in zip(self.topology.parties, flags, strict=True) if flag)
