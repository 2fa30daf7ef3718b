"""Placement policies: who decides the next step. Each is a small object without state, handed to an aggregator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from tandem.config.extensions import Parameters, call, check_has, is_extension
from tandem.errors import ConfigError
from tandem.scheduler.greedy import Situation, choose
from tandem.topology import Party

LOADED: dict[str, Callable[[Party], Policy]] = {}
"""Policies of one's own in this process, by the name that its settings gave."""


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
    """The policy of that name. first: who decides the first step, and every step if the placement is fixed.

    Raises ConfigError for a policy of one's own that this process has not loaded.
    """
    if not is_extension(placement):
        return Greedy() if placement == "greedy" else Fixed(first)
    if placement not in LOADED:
        raise ConfigError(
            f"The placement policy {placement!r} is not loaded here; name it as decoding.placement in the settings "
            "of both parties and start them again."
        )
    return LOADED[placement](first)


def load_policy(placement: str, parameters: Parameters, where: str) -> str:
    """Load the policy that a party's own settings name, for `make_policy`; returns what both parties must share.

    That is empty unless the policy is one's own. Only settings load code: the placement of a query may come from
    another machine. where: the loading process, in words. Raises ConfigError.
    """
    if not is_extension(placement):
        if parameters:
            raise ConfigError(
                f"scheduler.parameters is for a placement policy of your own, but decoding.placement is {placement!r} "
                f"and the table holds {', '.join(parameters)}; remove it."
            )
        return ""
    setting = "decoding.placement"

    def make(first: Party) -> Policy:
        policy = call(setting, placement, parameters, "scheduler.parameters", where, first=first)
        check_has(policy, ("advise", "choose_next"), setting, placement, "placement policy")
        return cast(Policy, policy)

    make(Party.DEVICE)
    LOADED[placement] = make
    shown = ", ".join(f"{name}={value!r}" for name, value in sorted(parameters.items()))
    return f"{placement}({shown})"
