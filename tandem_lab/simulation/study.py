"""DRAGON's study of scheduling (7.4): the same acceptance sequence under every strategy, over a link that varies.

Runs the real protocol under the virtual clock with a model that replays acceptance. Knows nothing of where sequences
come from, or of plots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Literal, TypeAlias

from tandem.events import Event, PlacementEvent, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scripted import (
    CODEC,
    Accepted,
    ScriptedModel,
    Seconds,
    decode_times,
    length_rule,
    scripted_spec,
)
from tandem_lab.simulation.virtual import VirtualRun

Strategy: TypeAlias = Literal["device", "cloud", "random", "greedy", "mirror", "token-wise"]
"""A placement, or the synchronous loop with the aggregator on the device."""
STRATEGIES: tuple[Strategy, ...] = ("device", "cloud", "greedy", "mirror", "random")
LIMIT_S = 36_000.0
"""Of virtual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One sequence under one strategy, as the device saw it."""

    events: tuple[Event, ...]
    num_forwards: dict[Party, int]

    @property
    def tokens(self) -> list[TokenEvent]:
        """The committed tokens."""
        return [event for event in self.events if isinstance(event, TokenEvent)]

    @property
    def total_s(self) -> float:
        """From the question to the last token."""
        return self.tokens[-1].committed_s

    @property
    def token_s(self) -> float:
        """Mean time from one token to the next; what Eq. (7) predicts. nan for a single token."""
        tokens = self.tokens
        gaps = len(tokens) - 1
        return (tokens[-1].committed_s - tokens[0].committed_s) / gaps if gaps else float("nan")

    @property
    def num_switches(self) -> int:
        """How often the aggregator moved."""
        return sum(isinstance(event, PlacementEvent) for event in self.events)


def link_of(rtt_s: float, *, wave: float = 0.0, wave_phase: float = 0.0) -> Link:
    """An ordered link with half of `rtt_s` each way; `wave`: amplitude of the sinusoidal jitter, as a share."""
    return Link(delay_s=rtt_s / 2, wave=wave, wave_phase=wave_phase, is_in_order=True)


def replay(
    accepted: Sequence[Accepted],
    decode_s: Mapping[Party, Seconds],
    link: Link,
    strategy: Strategy,
    *,
    seed: int = 0,
    **changes: object,
) -> Replay:
    """Answer with as many tokens as `accepted` has steps; `changes` are other fields of the `SessionSpec`.

    Raises RuntimeError if the run does not give just that sequence: then its time would say nothing.
    """
    options = (
        {"placement": "device", "max_window": 1} if strategy == "token-wise" else {"placement": strategy}
    )
    spec = scripted_spec(len(accepted), seed=seed, **options, **changes)
    run = VirtualRun(
        spec,
        {party: ScriptedModel(party, accepted) for party in PARTIES},
        CODEC,
        finished=length_rule(len(accepted)),
        link=link,
        decode_s=decode_times(decode_s),
        seed=seed,
    )
    outcome = run.run(LIMIT_S)
    found = Replay(events=tuple(outcome.events), num_forwards=outcome.num_forwards)
    if [(token.device_accepted, token.cloud_accepted) for token in found.tokens] != list(accepted):
        raise RuntimeError(f"The replay under {strategy} committed another sequence than it was given.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A quantity over many sequences; 25 %, 50 % and 75 % quantiles."""

    mean: float
    p25: float
    p50: float
    p75: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Of at least one value."""
        seen = list(values)
        p25, p50, p75 = quantiles(seen, n=4, method="inclusive") if len(seen) > 1 else seen * 3
        return cls(mean=fmean(seen), p25=p25, p50=p50, p75=p75, n=len(seen))


def compare(
    sequences: Sequence[Sequence[Accepted]],
    decode_s: Mapping[Party, Seconds],
    link: Link,
    strategies: Sequence[Strategy] = STRATEGIES,
    **changes: object,
) -> dict[Strategy, list[Replay]]:
    """Every sequence under every strategy; the number of a sequence is the seed of its run."""
    return {
        strategy: [
            replay(accepted, decode_s, link, strategy, seed=seed, **changes)
            for seed, accepted in enumerate(sequences)
        ]
        for strategy in strategies
    }
