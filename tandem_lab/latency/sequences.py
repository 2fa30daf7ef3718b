"""Sequence-wise synchronisation: two whole answers, of which the likelier is taken (DRDG/SW).

The rule is RAG-Sequence's "fast decoding" (Lewis et al., 2020) with a side in the place of a document: an answer counts
only under the distributions of the side that wrote it.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.aggregation.rules import shares
from tandem.codecs import Codec
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.sequences import SequenceResult


def log_probability(sequence: SequenceResult, codec: Codec | None) -> float:
    """Sum of log q(x_t) over the steps. codec: None if the distributions are dense. -inf if a
    token has probability 0."""
    total = 0.0
    for token, distribution in zip(sequence.tokens, sequence.distributions, strict=True):
        if codec is None:
            dense = np.frombuffer(distribution, dtype="<f2").astype(np.float64)
            probability = float(dense[token] / dense.sum())
        else:
            probability = codec.decode(distribution).probability(token)
        total += math.log(probability) if probability > 0 else -math.inf
    return total


def pick_likelier(sequences: dict[Party, SequenceResult], codec: Codec | None) -> Party:
    """The side s with the greatest log eta^s + sum of log q^s(x_t); the device's in a tie."""
    etas = shares(*(sequences[party].log_weight for party in PARTIES))
    scores = [
        _log(eta) + log_probability(sequences[party], codec) for party, eta in zip(PARTIES, etas, strict=True)
    ]
    return Party.DEVICE if scores[0] >= scores[1] else Party.CLOUD


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
