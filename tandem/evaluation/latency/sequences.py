"""Sequence-wise synchronisation: two whole answers, of which the likelier is taken (DRDG/SW).

The rule is RAG-Sequence's "fast decoding" (Lewis et al., 2020) with a side in the place of a document: an answer counts
only under the laws of the side that wrote it. Knows laws and tokens; nothing of clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tandem.aggregation.codec import Codec
from tandem.aggregation.mixture import shares
from tandem.side import SIDES, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One side's whole answer."""

    tokens: tuple[int, ...]
    laws: tuple[bytes, ...]  # of each step: encoded, or [vocab] little-endian float16
    log_weight: float  # log-sum-exp of its documents' scores for the question

    @property
    def num_bytes(self) -> int:
        """What crosses the link at least: laws, four bytes a token, eight for the weight."""
        return sum(map(len, self.laws)) + 4 * len(self.tokens) + 8


def log_probability(sequence: Written, codec: Codec | None) -> float:
    """Sum of log q(x_t) over the steps. codec: of the laws; None: they are dense. -inf if one cannot be drawn."""
    total = 0.0
    for token, law in zip(sequence.tokens, sequence.laws, strict=True):
        if codec is None:
            dense = np.frombuffer(law, dtype="<f2").astype(np.float64)
            probability = float(dense[token] / dense.sum())
        else:
            probability = codec.decode(law).probability(token)
        total += math.log(probability) if probability > 0 else -math.inf
    return total


def likelier(sequences: dict[Side, Written], codec: Codec | None) -> Side:
    """The side s with the greatest log eta^s + sum of log q^s(x_t); the device's if both are alike."""
    etas = shares(*(sequences[side].log_weight for side in SIDES))
    scores = [
        _log(eta) + log_probability(sequences[side], codec) for side, eta in zip(SIDES, etas, strict=True)
    ]
    return Side.DEVICE if scores[0] >= scores[1] else Side.CLOUD


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
