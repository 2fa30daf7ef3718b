"""From estimates with gaps to finite numbers: what the scheduler assumes, and says that it assumes.

Knows a `Profile`; nothing of placement rules.
"""

from __future__ import annotations

from math import isfinite

from tandem.protocol.messages import Profile
from tandem.scheduler.greedy import Situation
from tandem.topology import PARTIES, Party

MAX_S = 60.0
"""Longest decode time or round trip that is believed: a longer one is a lost peer, and handled as such."""
UNKNOWN_ACCEPTANCE = 0.5
UNKNOWN_DECODE_S = 0.05


def situation(profile: Profile) -> tuple[Situation, tuple[str, ...]]:
    """Finite values for Eq. (6) to (8), and one sentence for each that was not measured."""
    notes = list(profile.notes)
    decode_s = _decode_s(profile, notes)
    acceptance = {
        Party.DEVICE: _acceptance(Party.DEVICE, profile.device_acceptance, notes),
        Party.CLOUD: _acceptance(Party.CLOUD, profile.cloud_acceptance, notes),
    }
    rtt_s = _rtt_s(profile.rtt_s, notes)
    return Situation(decode_s=decode_s, acceptance=acceptance, rtt_s=rtt_s), tuple(notes)


def _decode_s(profile: Profile, notes: list[str]) -> dict[Party, float]:
    """A side without a measurement is taken to be as fast as the other."""
    measured = {Party.DEVICE: profile.device_decode_s, Party.CLOUD: profile.cloud_decode_s}
    found: dict[Party, float] = {}
    for party in PARTIES:
        value, other = measured[party], measured[party.other]
        if isfinite(value) and 0 < value <= MAX_S:
            found[party] = value
        elif isfinite(other) and 0 < other <= MAX_S:
            found[party] = other
            notes.append(f"The decode time of the {party} is {value:g} s; the other side's was assumed.")
        else:
            found[party] = UNKNOWN_DECODE_S
            notes.append(
                f"The decode time of the {party} is {value:g} s; {UNKNOWN_DECODE_S:g} s was assumed."
            )
    return found


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
