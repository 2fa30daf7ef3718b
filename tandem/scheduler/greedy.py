"""DRAGON's greedy rule as pure functions: what a token costs with the aggregator here or there.

`l` is the side that aggregates (local), `r` the other (remote), as in the paper. Knows decode times, a round
trip and acceptance rates as numbers; nothing of how they are measured, of sessions or of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.side import Side

HORIZON = 16
"""Tokens over which an estimate is expected to hold: what a switch costs is weighed against so many tokens' gain."""


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

    decode_s: dict[Side, float]
    acceptance: dict[Side, float]
    rtt_s: float

    @property
    def delta_z_s(self) -> float:
        """Z with the aggregator on the device minus Z with it on the cloud; Eq. (8). Above 0: the cloud is better."""
        device, cloud = Side.DEVICE, Side.CLOUD
        return delta_z(
            self.decode_s[device],
            self.decode_s[cloud],
            self.acceptance[device],
            self.acceptance[cloud],
            self.rtt_s,
        )

    def token_s(self, aggregator: Side) -> float:
        """Expected time per token with `aggregator` aggregating, in seconds; Eq. (7)."""
        other = aggregator.other
        return token_s(self.decode_s[aggregator], self.decode_s[other], self.acceptance[other], self.rtt_s)


def choose(situation: Situation, aggregator: Side, *, horizon: int = HORIZON) -> Side:
    """Who shall aggregate next; Eq. (6) with hysteresis.

    NOT in the paper: it switches as soon as the sign of Eq. (8) changes. The new aggregator decides its first step
    when the verdict has reached it, half a round trip later than the old one could have; so a switch is made only
    if `horizon` tokens gain more than that.
    """
    gain_s = situation.delta_z_s if aggregator is Side.DEVICE else -situation.delta_z_s
    return aggregator.other if gain_s * horizon > situation.rtt_s / 2 else aggregator
