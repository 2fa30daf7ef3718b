"""DRAGON's greedy rule as pure functions: what a token costs with the aggregator here or there.

`l` is the side that aggregates (local), `r` the other (remote), as in the paper. Knows decode times, a round
trip and acceptance rates as numbers; nothing of how they are measured, of sessions or of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.topology import Party

HORIZON = 3
"""Tokens of Eq. (8)'s gain that a switch is weighed with: few, since a switch is taken back at the next rejection."""


def token_s(c_l: float, c_r: float, alpha_r: float, rtt_s: float) -> float:
    """Z^l, expected time per token with the aggregator at l, in seconds; Eq. (7).

    c_l, c_r: decode times in seconds. alpha_r: acceptance rate of the remote side's drafts, in [0, 1].
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
    """What Eq. (6) to (8) take in; every value finite. Times in seconds, acceptance rates in [0, 1]."""

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
    """What it costs, in seconds, to move the aggregator where a remote draft was just rejected; below 0: it saves.

    NOT in the paper. The verdict goes to the remote side in any case, and that side needs it to draft on. If it
    aggregates there, the next pair is complete half a round trip after the verdict was sent; if the aggregator stays,
    the new draft must come back first. A slower aggregator's side makes up for part of that wait: it drafts ahead
    meanwhile, and until the next rejection the pairs follow each other at the faster side's pace.
    """
    c_l, c_r = situation.decode_s[aggregator], situation.decode_s[aggregator.other]
    stall_s = max(c_l, c_r + situation.rtt_s) - max(c_l, c_r)
    rejections_per_token = 2.0 - sum(situation.acceptance.values())
    ahead_s = max(0.0, c_l - c_r) / max(rejections_per_token, 0.02)
    return situation.rtt_s / 2 - max(0.0, stall_s - ahead_s)


def choose(situation: Situation, aggregator: Party, *, horizon: int = HORIZON) -> Party:
    """Who shall aggregate once a remote draft is rejected; Eq. (6), with the switch itself weighed in.

    NOT in the paper: it switches as soon as the sign of Eq. (8) changes, after any step. While remote drafts are
    accepted nothing is gained by a switch; where one is rejected the switch saves half a round trip (`switch_s`).
    """
    gain_s = situation.delta_z_s if aggregator is Party.DEVICE else -situation.delta_z_s
    return aggregator.other if gain_s * horizon > switch_s(situation, aggregator) else aggregator
