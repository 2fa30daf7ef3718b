"""Sequence-wise synchronisation: two whole answers, of which the likelier is taken (DRDG/SW).

The rule is RAG-Sequence's "fast decoding" (Lewis et al., 2020) with a side in the place of a document: an answer counts
only under the laws of the side that wrote it. Knows laws and tokens; nothing of clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tandem.aggregation.mixture import shares
from tandem.codecs.top_p import Codec
from tandem.topology import PARTIES, Party


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One side's whole answer."""

    tokens: tuple[int, ...]
    distributions: tuple[bytes, ...]  # of each step: encoded, or [vocab] little-endian float16
    log_weight: float  # log-sum-exp of its documents' scores for the question

    @property
    def num_bytes(self) -> int:
        """What crosses the link at least: laws, four bytes a token, eight for the weight."""
        return sum(map(len, self.distributions)) + 4 * len(self.tokens) + 8


def log_probability(sequence: Written, codec: Codec | None) -> float:
    """Sum of log q(x_t) over the steps. codec: of the laws; None: they are dense. -inf if one cannot be drawn."""
    total = 0.0
    for token, distribution in zip(sequence.tokens, sequence.distributions, strict=True):
        if codec is None:
            dense = np.frombuffer(distribution, dtype="<f2").astype(np.float64)
            probability = float(dense[token] / dense.sum())
        else:
            probability = codec.decode(distribution).probability(token)
        total += math.log(probability) if probability > 0 else -math.inf
    return total


def likelier(sequences: dict[Party, Written], codec: Codec | None) -> Party:
    """The side s with the greatest log eta^s + sum of log q^s(x_t); the device's if both are alike."""
    etas = shares(*(sequences[party].log_weight for party in PARTIES))
    scores = [
        _log(eta) + log_probability(sequences[party], codec) for party, eta in zip(PARTIES, etas, strict=True)
    ]
    return Party.DEVICE if scores[0] >= scores[1] else Party.CLOUD


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
