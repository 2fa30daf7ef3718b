"""Policies without state: who decides the next step, and how many tokens a drafter without a vote proposes at a time.

No placement or length changes an answer, only how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from tandem import plugins
from tandem.config.extensions import Parameters, call, check_has, is_extension
from tandem.errors import ConfigError
from tandem.scheduler.greedy import Situation, choose
from tandem.topology import Party

P = TypeVar("P")


class Loader(Generic[P]):
    """Custom policies of one kind in this process, by the name that its settings gave.

    Only settings load code: what a query names may come from another machine.
    """

    def __init__(self, kind: str, setting: str, table: str, members: tuple[str, ...], owner: str) -> None:
        """kind: in words. setting, table: keys of the name and its parameters. members: what such a policy has.

        owner: whose settings must name it, in words.
        """
        self._kind, self._setting, self._table = kind, setting, table
        self._members, self._owner = members, owner
        self._makers: dict[str, Callable[..., P]] = {}

    def load(self, name: str, parameters: Parameters, where: str, **trial: Any) -> None:
        """Load a policy for `make`; nothing if it is built in. Raises ConfigError.

        where: the loading process, in words. trial: arguments with which one is made at once, to find mistakes.
        """
        if not is_extension(name):
            return

        address = plugins.address_of("policy", name)

        def make(**given: Any) -> P:
            policy = call(self._setting, address, parameters, self._table, where, **given)
            check_has(policy, self._members, self._setting, name, self._kind)
            return cast(P, policy)

        make(**trial)
        self._makers[name] = make

    def make(self, name: str, **given: Any) -> P:
        """A loaded policy for one query. given: arguments that every policy of this kind takes. Raises ConfigError."""
        if name not in self._makers:
            them = "them" if self._owner == "both parties" else "it"
            raise ConfigError(
                f"The {self._kind} {name!r} is not loaded here; name it as {self._setting} in the settings of "
                f"{self._owner} and start {them} again."
            )
        return self._makers[name](**given)


class Policy(Protocol):
    """The placement of a session's aggregator."""

    def advise(self, situation: Situation, aggregator: Party) -> Party | None:
        """The party that should aggregate after the next rejection of a remote draft; None if that never depends on
        estimates."""

    def choose_next(
        self, step: int, aggregator: Party, *, remote_accepted: bool, advice: Party | None
    ) -> Party:
        """The decider of `step`, after `aggregator` has decided the one before.

        remote_accepted: whether the other party's draft was accepted in that step. advice: the last from `advise`.
        """


@dataclass(frozen=True, slots=True)
class Fixed:
    """One party decides every step. Under `mirror` both do, and this one takes over if the other is lost."""

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


PLACEMENTS = Loader[Policy](
    "placement policy",
    "decoding.placement",
    "scheduler.parameters",
    ("advise", "choose_next"),
    "both parties",
)


def make_policy(placement: str, first: Party) -> Policy:
    """The policy of that name. first: who decides the first step, and every step if the placement is fixed.

    Raises ConfigError for a custom policy that this process has not loaded.
    """
    if is_extension(placement):
        return PLACEMENTS.make(placement, first=first)
    return Greedy() if placement == "greedy" else Fixed(first)


def load_policy(placement: str, parameters: Parameters, where: str) -> str:
    """Load the policy that a party's own settings name (`Loader.load`); returns what both parties must share.

    That is empty unless the policy is custom.
    """
    PLACEMENTS.load(placement, parameters, where, first=Party.DEVICE)
    shown = ", ".join(f"{name}={value!r}" for name, value in sorted(parameters.items()))
    return f"{placement}({shown})" if is_extension(placement) else ""


class LengthPolicy(Protocol):
    """Chooses the lengths of one query's proposals, in the decoder that drafts them."""

    def choose(self) -> int:
        """Tokens of the next proposals; 0: none. Asked at first, and after each verdict."""

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """A proposal was decided. num_accepted: its tokens before the first rejected one. draft_s: to draft it."""


LENGTH_POLICIES = Loader[LengthPolicy](
    "length policy",
    "decoding.length_policy",
    "scheduler.parameters",
    ("choose", "observe"),
    "the device",
)


def make_length_policy(name: str, max_length: int) -> LengthPolicy | None:
    """A policy for one query; None: the length stays. max_length: tokens of its longest proposal.

    Raises ConfigError for a policy that this process has not loaded.
    """
    return LENGTH_POLICIES.make(name, max_length=max_length) if is_extension(name) else None


def load_length_policy(name: str, parameters: Parameters, where: str) -> None:
    """Load the policy that a party's own settings name; nothing if there is none. As `Loader.load`."""
    LENGTH_POLICIES.load(name, parameters, where, max_length=1)
