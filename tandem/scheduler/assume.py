"""From estimates with gaps to finite numbers, with one sentence for each assumption."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from tandem.scheduler.greedy import Situation
from tandem.topology import PARTIES, Party

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
