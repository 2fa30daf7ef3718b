"""A codec with a state and a rest, for tests: an adaptive threshold, as sparsifying codecs have one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.codecs.base import MAX_VOCAB


@dataclass(frozen=True)
class Threshold:
    """Keeps what reaches a threshold, which falls when more mass than `target` was dropped and rises otherwise.

    Bytes: a weight of each token, then that of all dropped ones together, which are spread evenly over them.
    """

    vocab: int
    target: float = 0.2
    step: float = 0.05

    @property
    def max_bytes(self) -> int:
        return self.vocab + 1

    def open(self) -> ThresholdState:
        return ThresholdState(self, 0.1)

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        weights = np.frombuffer(payload, "u1").astype(np.int64)
        ids, total = np.flatnonzero(weights[:-1]), int(weights.sum())
        return Distribution(ids, weights[ids] / total, int(weights[-1]) / total, self.vocab)

    def fingerprint(self) -> str:
        return f"threshold(vocab={self.vocab}, target={self.target}, step={self.step})"


@dataclass(frozen=True)
class ThresholdState:
    """The threshold before one token."""

    codec: Threshold
    beta: float

    def encode(self, dense: NDArray[np.floating]) -> tuple[bytes, ThresholdState]:
        dense = dense / dense.sum()
        is_kept = (dense >= self.beta) | (dense == dense.max())
        dropped = float(dense[~is_kept].sum())
        kept = np.where(is_kept, np.maximum(1, np.rint(200 * dense)), 0)
        beta = self.beta - self.codec.step * (dropped - self.codec.target)
        payload = np.append(kept, np.rint(200 * dropped)).astype("u1").tobytes()
        return payload, ThresholdState(self.codec, beta)
