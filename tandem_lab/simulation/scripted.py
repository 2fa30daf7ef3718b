"""A model that replays a recorded acceptance sequence: its small laws force who is accepted at every step.

At temperature 0 draft and target are the argmax of a law, and two sides without documents weigh the same, so four
pairs of laws are enough: one for each of "both accepted", "only the device", "only the cloud", "neither". A rejected
draft is another token than the target, so all that was drafted after it is worthless, as with a real model. Knows
nothing of links, clocks or how a sequence came about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TypeAlias

import numpy as np

from tandem.aggregation.document_weights import Evidence, Weights
from tandem.codecs import TopP
from tandem.events import StopReason
from tandem.messages import RetrieveRequest, RetrieveResult
from tandem.modes.spec import SessionSpec
from tandem.protocol.decoding import Prefill
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec
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
    """One side's model. Implements `tandem_lab.simulation.virtual.SideModel`."""

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


def decode_times(seconds: Mapping[Party, Seconds]) -> Callable[[Party, random.Random], float]:
    """Decode times for `VirtualRun`, one after another on each side."""
    left = {party: cycle(_sequence(seconds[party])) for party in PARTIES}
    return lambda party, rng: next(left[party])


def _sequence(seconds: Seconds) -> Sequence[float]:
    return [float(seconds)] if isinstance(seconds, int | float) else seconds
