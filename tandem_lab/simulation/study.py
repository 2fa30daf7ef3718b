"""DRAGON's study of scheduling (7.4): the same acceptance sequence under every strategy, over a link that varies.

The real protocol under the virtual clock, with a model that replays an acceptance sequence: its small laws force who is
accepted at every step. At temperature 0 draft and target are the argmax of a law, and two sides without documents weigh
the same, so four pairs of laws are enough: one for each of "both accepted", "only the device", "only the cloud",
"neither". A rejected draft is another token than the target, so all that was drafted after it is worthless, as with a
real model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import fmean, quantiles
from typing import Literal, TypeAlias

import numpy as np

from tandem.aggregation.document_weights import Evidence, Weights
from tandem.codecs import TopP
from tandem.errors import TandemError
from tandem.events import Event, PlacementEvent, StopReason, TokenEvent
from tandem.messages import RetrieveRequest, RetrieveResult
from tandem.modes import SessionSpec
from tandem.protocol.decoding import Prefill
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import make_spec
from tandem_lab.simulation.virtual import VirtualRun
from tandem_lab.simulation.world import Prefilled

Accepted: TypeAlias = tuple[bool, bool]
"""Whether the device's draft and the cloud's draft of one step are the target."""
Seconds: TypeAlias = float | Sequence[float]
"""Decode time of each draft; a sequence is used from its beginning, and again when it is used up."""

CODEC = TopP(p=1.0)
VOCAB = 3
_DEVICE, _CLOUD, _THIRD = range(VOCAB)


def _law(likely: int, other: int | None = None) -> bytes:
    """All mass on one token, or 0.6 on `likely` and 0.4 on `other`."""
    dense = np.zeros(VOCAB)
    dense[likely] = 1.0 if other is None else 0.6
    if other is not None:
        dense[other] = 0.4
    return CODEC.encode(dense)


LAWS: dict[Accepted, dict[Party, bytes]] = {
    # With eta = 1/2 the target law (Eq. 4) is the mean of both; its argmax is the token to commit.
    (True, True): {Party.DEVICE: _law(_THIRD), Party.CLOUD: _law(_THIRD)},
    (True, False): {Party.DEVICE: _law(_DEVICE), Party.CLOUD: _law(_CLOUD, _DEVICE)},
    (False, True): {Party.DEVICE: _law(_DEVICE, _CLOUD), Party.CLOUD: _law(_CLOUD)},
    (False, False): {Party.DEVICE: _law(_DEVICE, _THIRD), Party.CLOUD: _law(_CLOUD, _THIRD)},
}


class ScriptedModel:
    """One side's model. Implements `tandem_lab.simulation.virtual.SiteModel`."""

    def __init__(self, party: Party, accepted: Sequence[Accepted]) -> None:
        self.party, self.accepted = party, accepted

    def retrieve(self, message: RetrieveRequest) -> RetrieveResult:
        """Never asked: neither side has documents."""
        raise AssertionError(f"{message} for a model without documents")

    def prefill(self, job: Prefill) -> Prefilled:
        """Nothing to do."""
        return Prefilled()

    def evidence(self, tokens: Sequence[int], token: int, num_rows: int) -> Evidence:
        """Never asked, likewise."""
        raise AssertionError("evidence of a model without documents")

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """The encoded law of a step, whatever the prefix."""
        return LAWS[self.accepted[len(tokens)]][self.party]


def scripted_spec(num_tokens: int, **changes: object) -> SessionSpec:
    """A query that has no documents and ends after `num_tokens`; `changes` are other fields of `SessionSpec`.

    The window is wider than the default, so that it never limits what Eq. (7) does not know of.
    """
    fixed = {"session": 1, "query": "", "seed": 0, "device_documents": 0, "cloud_documents": 0}
    values = {"max_window": 64, "on_peer_loss": "wait", "max_new_tokens": num_tokens} | changes
    return make_spec(**(fixed | values))


def length_rule(num_tokens: int) -> Callable[[Sequence[int]], StopReason | None]:
    """The answer is complete with `num_tokens` tokens."""

    def finished(tokens: Sequence[int]) -> StopReason | None:
        return "length" if len(tokens) >= num_tokens else None

    return finished


def decode_times(seconds: Mapping[Party, Seconds]) -> Callable[[Party, Random], float]:
    """Decode times for `VirtualRun`, one after another on each side."""
    left = {party: cycle(_sequence(seconds[party])) for party in PARTIES}
    return lambda party, rng: next(left[party])


def _sequence(seconds: Seconds) -> Sequence[float]:
    return [float(seconds)] if isinstance(seconds, int | float) else seconds


# ---- acceptance sequences ----------------------------------------------------------------------------------

Joint: TypeAlias = Literal["independent", "exclusive"]
"""How the outcomes of the two sides of one step hang together.

independent: P(neither) = (1 - alpha_device)(1 - alpha_cloud). exclusive: at most one side is rejected wherever the
rates allow it, as for real models at temperature 0, whose target is nearly always one of the two drafts.
"""
LETTERS: dict[str, Accepted] = {
    "B": (True, True),
    "D": (True, False),
    "C": (False, True),
    "N": (False, False),
}
"""Of a recorded sequence: both accepted, only the device's draft, only the cloud's, neither."""


def draw_acceptance(
    num_tokens: int, alpha_device: float, alpha_cloud: float, rng: Random, joint: Joint = "independent"
) -> list[Accepted]:
    """Steps that do not depend on each other, with acceptance rates in [0, 1]."""
    steps = []
    for _ in range(num_tokens):
        first = rng.random()
        second = rng.random() if joint == "independent" else 1.0 - first
        steps.append((first < alpha_device, second < alpha_cloud))
    return steps


def phases(num_tokens: int, high: float, low: float, length: int, rng: Random) -> list[Accepted]:
    """`length` tokens of which the device gets many accepted, then as many for the cloud, and so on; independent."""
    begins = rng.randrange(2)
    rates = cycle([(high, low), (low, high)])
    steps: list[Accepted] = []
    for alpha_device, alpha_cloud in islice(rates, begins, None):
        steps += draw_acceptance(min(length, num_tokens - len(steps)), alpha_device, alpha_cloud, rng)
        if len(steps) >= num_tokens:
            break
    return steps


def rates(steps: Sequence[Accepted]) -> dict[Party, float]:
    """The shares that were accepted."""
    return {party: sum(step[index] for step in steps) / len(steps) for index, party in enumerate(PARTIES)}


def parse_steps(letters: str) -> list[Accepted]:
    """Steps of a recorded sequence; TandemError for another letter."""
    if unknown := set(letters) - LETTERS.keys():
        raise TandemError(
            f"An acceptance sequence consists of {', '.join(LETTERS)}, but {min(unknown)!r} is in it; record it again."
        )
    return [LETTERS[letter] for letter in letters]


def read_acceptance(path: Path) -> dict[str, list[list[Accepted]]]:
    """Recorded sequences by temperature ("0", "1")."""
    found = json.loads(path.read_text("utf-8"))["sequences"]
    return {temperature: [parse_steps(letters) for letters in lines] for temperature, lines in found.items()}


def read_decode_times(path: Path) -> dict[Party, list[float]]:
    """Recorded decode times in seconds."""
    found = json.loads(path.read_text("utf-8"))["decode_ms"]
    return {party: [value / 1e3 for value in found[str(party)]] for party in PARTIES}


# ---- replays -----------------------------------------------------------------------------------------------

Strategy: TypeAlias = Literal["device", "cloud", "random", "greedy", "mirror", "token-wise"]
"""A placement, or the synchronous loop with the aggregator on the device."""
STRATEGIES: tuple[Strategy, ...] = ("device", "cloud", "greedy", "mirror", "random")
LIMIT_S = 36_000.0
"""Of virtual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One sequence under one strategy, as the device saw it."""

    events: tuple[Event, ...]
    num_forwards: Mapping[str, int]

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
