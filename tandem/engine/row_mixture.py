"""The distribution of one party: the next-token distributions of its rows, mixed by the weights of their documents.

It is not compressed yet (that is the codec's task, and comes before any draw).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.document_weights import check_weights
from tandem.errors import GenerationError

if TYPE_CHECKING:
    import torch


def row_probabilities(logits: torch.Tensor, temperature: float = 1.0) -> NDArray[np.float32]:
    """softmax(logits / T) of each row, [rows, vocab]. logits: of any float type; the softmax runs in float32."""
    import torch

    rows = logits.detach().float()
    if temperature not in (0.0, 1.0):
        # Subtracting first keeps a tiny temperature from overflowing to inf - inf.
        rows = (rows - rows.amax(dim=-1, keepdim=True)) / temperature
    return np.asarray(torch.softmax(rows, dim=-1).cpu().numpy())


def mix_rows(
    logits: torch.Tensor, log_weights: Sequence[float] | NDArray[np.float64], temperature: float
) -> NDArray[np.float64]:
    """q [vocab] = sum over rows d of omega(d) * softmax(logits[d] / T); DRAGON Eq. (1) and (2).

    logits: [rows, vocab] of any float type. log_weights: [rows], omega = softmax(log_weights); a bare row's
    -inf is fine. temperature: T; 0 means T = 1 here, since a greedy token is the argmax of the decoded distribution.
    The rows' softmax runs in float32, as exact as the logits are, the mixture in float64.
    """
    return mix_and_keep(logits, log_weights, temperature)[0]


def mix_and_keep(
    logits: torch.Tensor, log_weights: Sequence[float] | NDArray[np.float64], temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """As `mix_rows`, with the rows' own probabilities [rows, vocab] at this temperature."""
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise GenerationError(
            f"The temperature is {temperature}; set it to a number of at least 0 (0 is greedy)."
        )
    weights = weigh_rows(log_weights)
    if len(weights) != logits.shape[0]:
        raise GenerationError(
            f"There are {logits.shape[0]} rows and {len(weights)} weights; "
            "score exactly the documents that the engine kept."
        )
    probabilities = row_probabilities(logits, temperature)
    distribution: NDArray[np.float64] = np.multiply(probabilities[0], weights[0], dtype=np.float64)
    for weight, row in zip(weights[1:], probabilities[1:], strict=True):
        distribution += np.multiply(row, weight, dtype=np.float64)
    distribution /= distribution.sum()
    return distribution, probabilities


def weigh_rows(log_weights: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """omega [rows] = softmax(log_weights), in log space; uniform where all are -inf (a bare row)."""
    scores = np.asarray(log_weights, dtype=np.float64).reshape(-1)
    check_weights(scores.tolist())
    top = scores.max(initial=-math.inf)
    raw = np.ones(len(scores)) if top == -math.inf else np.exp(scores - top)
    return np.asarray(raw / raw.sum()) if len(raw) else raw
