"""Policies without state: who decides the next step, and how many tokens a drafter without a vote proposes at a time.

`l` is the party that aggregates (local), `r` the other (remote), as in the paper.

No placement or length changes an answer, only how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar, cast

from tandem import plugins
from tandem.config.extensions import Parameters, call, check_has, is_extension
from tandem.errors import ConfigError
from tandem.topology import PARTIES, Party

HORIZON = 3
"""Tokens over which Eq. (8)'s gain is weighed against a switch: few, since the next rejection may revert it."""


def token_s(c_l: float, c_r: float, alpha_r: float, rtt_s: float) -> float:
    """Z^l, expected time per token with the aggregator at l, in seconds; Eq. (7).

    c_l, c_r: decode times in seconds. alpha_r: acceptance rate of the remote party's drafts, in [0, 1].
    The paper prints trans^l twice; Table 1 shows that trans^l + trans^r, the round trip, is meant.
    """
    slower_s = max(c_l, c_r)
    return alpha_r * slower_s + (1.0 - alpha_r) * max(c_l, c_r + rtt_s)


def delta_z(c_l: float, c_r: float, alpha_l: float, alpha_r: float, rtt_s: float) -> float:
    """Z^l - Z^r in seconds, case by case as the paper prints it; Eq. (8). Above 0, r should aggregate."""
    j = c_r - c_l
    if c_l <= c_r - rtt_s:
        return (1.0 - alpha_r) * rtt_s
    if c_l <= c_r:
        return (1.0 - alpha_l) * j + (alpha_l - alpha_r) * rtt_s
    if c_l <= c_r + rtt_s:
        return (1.0 - alpha_r) * j + (alpha_l - alpha_r) * rtt_s
    return (alpha_l - 1.0) * rtt_s


def speedup(c_l: float, c_r: float, alpha_r: float, rtt_s: float) -> float:
    """S, how many times faster than the token-wise loop, with the aggregator at l; Eq. (9).

    Both decode times must be above 0 or the round trip must be: a loop that takes no time has no speed-up.
    """
    if c_l <= c_r:
        inverse = 1.0 - alpha_r * rtt_s / (rtt_s + c_r)
    elif c_l <= c_r + rtt_s:
        inverse = 1.0 - (1.0 - c_l / (c_r + rtt_s)) * alpha_r
    else:
        inverse = 1.0
    return 1.0 / inverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The inputs of Eq. (6) to (8); every value finite. Times in seconds, acceptance rates in [0, 1]."""

    decode_s: dict[Party, float]
    acceptance: dict[Party, float]
    rtt_s: float

    @property
    def delta_z_s(self) -> float:
        """Z with the aggregator on the device minus Z with it on the cloud; Eq. (8). Above 0: the cloud is better."""
        device, cloud = Party.DEVICE, Party.CLOUD
        return delta_z(
            self.decode_s[device],
            self.decode_s[cloud],
            self.acceptance[device],
            self.acceptance[cloud],
            self.rtt_s,
        )

    def token_s(self, aggregator: Party) -> float:
        """Expected time per token with `aggregator` aggregating, in seconds; Eq. (7)."""
        other = aggregator.other
        return token_s(self.decode_s[aggregator], self.decode_s[other], self.acceptance[other], self.rtt_s)


def switch_s(situation: Situation, aggregator: Party) -> float:
    """Cost in seconds of moving the aggregator when a remote draft was just rejected; below 0 it is a saving.

    NOT in the paper. The verdict goes to the remote party in any case, which needs it to draft on. If that party
    aggregates, the next ballot is complete half a round trip after the verdict was sent; if the aggregator stays, the
    new draft must come back first. If the aggregator's own decoder is the slower one, part of that wait is not lost: it
    drafts ahead meanwhile, and until the next rejection ballots complete at the faster party's pace.
    """
    c_l, c_r = situation.decode_s[aggregator], situation.decode_s[aggregator.other]
    stall_s = max(c_l, c_r + situation.rtt_s) - max(c_l, c_r)
    rejections_per_token = 2.0 - sum(situation.acceptance.values())
    ahead_s = max(0.0, c_l - c_r) / max(rejections_per_token, 0.02)
    return situation.rtt_s / 2 - max(0.0, stall_s - ahead_s)


def choose(situation: Situation, aggregator: Party, *, horizon: int = HORIZON) -> Party:
    """The party that should aggregate once a remote draft is rejected; Eq. (6), with the cost of the switch included.

    NOT in the paper, which switches as soon as the sign of Eq. (8) changes, after any step. While remote drafts are
    accepted a switch gains nothing; when one is rejected it saves half a round trip (`switch_s`).
    """
    gain_s = situation.delta_z_s if aggregator is Party.DEVICE else -situation.delta_z_s
    return aggregator.other if gain_s * horizon > switch_s(situation, aggregator) else aggregator


# ---- From estimates with gaps to finite numbers ------------------------------------------------------------


MAX_S = 60.0
"""Longest credible decode time or round trip: anything longer is a lost peer, and handled as such."""
UNKNOWN_ACCEPTANCE = 0.5
UNKNOWN_DECODE_S = 0.05


def fill_gaps(
    decode_s: Mapping[Party, float], acceptance: Mapping[Party, float], rtt_s: float
) -> tuple[Situation, tuple[str, ...]]:
    """Finite values for Eq. (6) to (8), and one sentence for each that was not measured.

    decode_s, rtt_s: in seconds; acceptance: rates. Any of them may be nan, infinite or absurd.
    """
    notes: list[str] = []
    situation = Situation(
        decode_s=_decode_s(decode_s, notes),
        acceptance={party: _acceptance(party, acceptance[party], notes) for party in PARTIES},
        rtt_s=_rtt_s(rtt_s, notes),
    )
    return situation, tuple(notes)


def _decode_s(measured: Mapping[Party, float], notes: list[str]) -> dict[Party, float]:
    """A party without a measurement is assumed to be as fast as the other."""
    decode_s: dict[Party, float] = {}
    for party in PARTIES:
        value, other = measured[party], measured[party.other]
        if isfinite(value) and 0 < value <= MAX_S:
            decode_s[party] = value
        elif isfinite(other) and 0 < other <= MAX_S:
            decode_s[party] = other
            notes.append(f"The decode time of the {party} is {value:g} s; the other party's was assumed.")
        else:
            decode_s[party] = UNKNOWN_DECODE_S
            notes.append(
                f"The decode time of the {party} is {value:g} s; {UNKNOWN_DECODE_S:g} s was assumed."
            )
    return decode_s


def _acceptance(party: Party, value: float, notes: list[str]) -> float:
    if isfinite(value):
        return min(1.0, max(0.0, value))
    notes.append(f"The acceptance rate of the {party} is {value:g}; {UNKNOWN_ACCEPTANCE:g} was assumed.")
    return UNKNOWN_ACCEPTANCE


def _rtt_s(value: float, notes: list[str]) -> float:
    if 0 <= value <= MAX_S:
        return value
    assumed = MAX_S if value > MAX_S else 0.0
    notes.append(f"The round trip is {value:g} s; {assumed:g} s was assumed.")
    return assumed


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
