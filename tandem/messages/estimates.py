"""Messages to a profiler and a scheduler: what steps showed, and what follows. None of them crosses the link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tandem.messages.link import registry
from tandem.messages.wire import Float64, Float64s, PartyIndex, Texts, UInt32, Varint, sequence


@registry.message(80)
@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one committed step showed. Part of `Observations`."""

    step: Varint
    aggregator: PartyIndex  # who decides the next step
    decode_s: Float64s  # of each party; nan: not seen
    acceptance: (
        Float64s  # of each party: expected, by the formula of the draft rule; nan: decided without the peer
    )
    rtt_s: Float64  # nan: not measured since the last step
    bytes_per_s: Float64  # of the link towards the peer; nan: not measured since, inf: too much to measure


@registry.message(82)
@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What a few consecutive steps showed: one message per step would wake two more actors for every token.

    Coordinator -> own profiler.
    """

    session: UInt32
    steps: Annotated[tuple[Any, ...], sequence(registry.nested(Observation))]


@registry.message(81)
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profiler's estimates after a step; nan where nothing is known. Profiler -> own scheduler."""

    session: UInt32
    step: Varint  # the last one observed
    aggregator: PartyIndex  # who decides the next step
    decode_s: Float64s  # of each party, predicted for the next step
    acceptance: Float64s  # of each party
    rtt_s: Float64  # the real-time estimate
    rtt_average_s: Float64  # the historical one
    bytes_per_s: Float64  # towards the peer
    notes: Texts  # one sentence for each measurement that was clamped, and to what


@registry.message(83)
@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the scheduler made of a profile. Scheduler -> own coordinator, for statistics and timelines."""

    session: UInt32
    profile: Annotated[Any, registry.nested(Profile)]
    delta_z_s: Float64  # Z(device) - Z(cloud), DRAGON Eq. 8: above 0 the cloud should aggregate
    chosen: PartyIndex
    assumed: Texts  # one sentence for each value that was not measured or not believed


@registry.message(84)
@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What became of one proposal, or how long the decider took for a token without one. Part of `Rounds`."""

    length: Varint  # tokens that were proposed; 0: none
    num_accepted: Varint  # those before the first rejected one
    draft_us: Varint  # time of the drafter's passes, microseconds
    num_bytes: Varint  # of the proposed tokens as they are sent, without the frame
    waited_s: Float64  # until the verdict; nan: not measured
    rtt_s: Float64  # the last round trip; nan: not measured yet
    bytes_per_s: Float64  # of the link towards the peer; nan: not measured yet, inf: too much to measure


@registry.message(85)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What became of the last proposals of a party without a vote. Coordinator -> own profiler."""

    session: UInt32
    rounds: Annotated[tuple[Any, ...], sequence(registry.nested(Round))]


@registry.message(86)
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProfile:
    """The profiler's estimates of proposals; times are nan where nothing is known. Profiler -> own scheduler."""

    session: UInt32
    rounds: Annotated[tuple[Any, ...], sequence(registry.nested(Round))]  # those since the last profile
    rates: Float64s  # of acceptance, by position in a proposal, as many as its longest has tokens
    error: Float64  # standard error of them
    fixed_s: Float64  # of a round, whatever it proposes
    token_s: Float64  # of each proposed token
    alone_s: Float64  # of a token that the decider commits without a proposal
    draft_s: Float64  # of token_s, to draft it, where the drafter does not wait for verdicts; nan: it waits
    pass_s: Float64  # of fixed_s, the decider's pass, where the drafter does not wait
