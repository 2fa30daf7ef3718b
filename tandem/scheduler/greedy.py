"""DRAGON's greedy rule as pure functions: what a token costs with the aggregator at either party.

`l` is the party that aggregates (local), `r` the other (remote), as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

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
