"""How probable the target law holds each token of a given text: weights of documents, side laws and their mixture.

The same formulas as in a live session (`aggregation.document_weights`, `engine.row_mixture`, `aggregation.mixture`),
kept to the one token that the text has at each step, in log space. Not compressed: a nucleus gives what lies outside
it probability 0. Knows numbers only: no models, no documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.document_weights import DocumentWeights, check_weights, log_evidence
from tandem.aggregation.rules import shares
from tandem.messages.wire import to_float32
from tandem_lab.quality.dynamic_weights import DynamicWeights, blend, checkpoints, weight_anchor

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PartyTokens:
    """One side's view of the tokens of a text."""

    log_q: Floats  # [tokens], log q_t(x_t) of the side's law, Eq. (1) and (2)
    log_weight: Floats  # [tokens], log h_t; -inf without documents


def relevance_by_step(
    num_tokens: int,
    estimate: Callable[[int], Sequence[float]],
    rule: DynamicWeights,
) -> Floats:
    """R(d, x_<kappa(t)) [tokens, documents] at each step; DRAGON section 4.1.

    estimate: prefix length -> scores of the documents at that prefix, asked once for each length that is needed.
    """
    blended: dict[int, tuple[float, ...]] = {}
    previous: tuple[float, ...] | None = None
    for length in checkpoints(num_tokens - 1, rule.interval, rule.lag):
        blended[length] = previous = blend(previous, estimate(length), rule.momentum)
    anchors = (weight_anchor(step, rule.interval, rule.lag) for step in range(num_tokens))
    return np.array([blended[anchor] for anchor in anchors], np.float64)


def evidence_by_step(log_p: Floats, rule: DocumentWeights) -> Floats:
    """Log weights [tokens, rows] at each step, by what each row said of the tokens before. log_p: [rows, tokens]."""
    evidence, weights = rule.start, []
    for token in log_p.T:
        weights.append(rule.weigh(evidence))
        evidence = rule.learn(evidence, log_evidence(np.exp(token).tolist()))
    return np.array(weights, np.float64)


def party_tokens(log_p: Floats, relevance: Floats | None) -> PartyTokens:
    """A side's law at each token: sum over rows d of omega_t(d) p(x_t | d, x_<t), omega = softmax of R.

    log_p: [rows, tokens]. relevance: [tokens, rows]; None for a side without documents, whose one row is bare.
    """
    if relevance is None:
        return PartyTokens(log_p[0], np.full(log_p.shape[1], -math.inf))
    check_weights(relevance.reshape(-1).tolist())
    log_weight = np.logaddexp.reduce(relevance, axis=1)
    log_q = np.logaddexp.reduce(relevance + log_p.T, axis=1) - log_weight
    return PartyTokens(log_q, log_weight)


def target_tokens(device: PartyTokens, cloud: PartyTokens) -> Floats:
    """log p_t(x_t) [tokens] of the target law, Eq. (4): the sides' laws mixed by their weights."""
    both = zip(device.log_weight, cloud.log_weight, strict=True)
    # Weights cross the link as 32-bit floats.
    etas = np.array([shares(to_float32(float(d)), to_float32(float(c))) for d, c in both])
    with np.errstate(divide="ignore"):  # a side without weight
        log_etas = np.log(etas)
    return np.asarray(np.logaddexp(log_etas[:, 0] + device.log_q, log_etas[:, 1] + cloud.log_q))
