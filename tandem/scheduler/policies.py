"""Placement policies: who decides the next step. Each is a small object without state, handed to an aggregator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tandem.scheduler.greedy import Situation, choose
from tandem.topology import Party


class Policy(Protocol):
    """Where the aggregator of a session sits."""

    def advise(self, situation: Situation, aggregator: Party) -> Party | None:
        """Who should aggregate after the next rejection of a remote draft; None if that never depends on estimates."""

    def choose_next(
        self, step: int, aggregator: Party, *, remote_accepted: bool, advice: Party | None
    ) -> Party:
        """Who decides `step`, after `aggregator` has decided the one before.

        remote_accepted: whether the other party's draft was accepted in that step. advice: the last from `advise`.
        """


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same party decides every step. Under `mirror` both do, and this one takes over if the other is lost."""

    party: Party

    def advise(self, situation: Situation, aggregator: Party) -> Party | None:
        """Never."""
        return None

    def choose_next(
        self, step: int, aggregator: Party, *, remote_accepted: bool, advice: Party | None
    ) -> Party:
        """Always the same."""
        return self.party


@dataclass(frozen=True, slots=True)
class Greedy:
    """The party with which a token costs less, by DRAGON Eq. 8; see `greedy.choose`."""

    def advise(self, situation: Situation, aggregator: Party) -> Party | None:
        """The cheaper party, with the switch itself weighed in."""
        return choose(situation, aggregator)

    def choose_next(
        self, step: int, aggregator: Party, *, remote_accepted: bool, advice: Party | None
    ) -> Party:
        """Hands over only where the other party's draft was rejected.

        The verdict must go there anyway, and until then nothing is lost by staying.
        """
        return aggregator if remote_accepted or advice is None else advice


def make_policy(placement: str, first: Party) -> Policy:
    """The policy of that name. first: who decides the first step, and every step if the placement is fixed."""
    return Greedy() if placement == "greedy" else Fixed(first)
