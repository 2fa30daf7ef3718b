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
from tandem.errors import GenerationError
from tandem.messages.wire import to_float32

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PartyTokens:
    """One side's view of the tokens of a text."""

    log_q: Floats  # [tokens], log q_t(x_t) of the side's law, Eq. (1) and (2)
    log_weight: Floats  # [tokens], log h_t; -inf without documents


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


# ---- The document weights of DRAGON (section 4.1) ----------------------------------------------------------------

# Relevance is estimated again and again while the answer grows: for the paper's figure 5. Tandem itself weighs
# documents by evidence. A fixed lag makes it a function of the prefix. NOT in the paper: the lag.


@dataclass(frozen=True, slots=True)
class DynamicWeights:
    """When relevance is estimated, and what becomes of an estimate."""

    interval: int = 3  # n, tokens between two estimates; 0: one for the whole answer
    lag: int = 1  # tokens that an estimate may take to arrive
    momentum: float = 0.0  # share that is kept of the previous estimate


def weight_anchor(step: int, interval: int, lag: int) -> int:
    """Length kappa of the prefix on which the relevance at `step` is estimated: max(0, n * floor((t - lag) / n)).

    interval: n, tokens between two estimates; 0 means one estimate for the whole answer (static weights).
    lag: tokens that an estimate may take to arrive, >= 0.
    """
    if interval < 0 or lag < 0:
        raise GenerationError(
            f"The interval and the lag of document weights are {interval} and {lag} tokens; set them to at least 0 "
            "(an interval of 0 for static weights)."
        )
    return max(0, interval * ((step - lag) // interval)) if interval else 0


def checkpoints(step: int, interval: int, lag: int) -> range:
    """Lengths of the prefixes whose estimates shape the weights at `step` by momentum: 0, n, ..., kappa."""
    return range(0, weight_anchor(step, interval, lag) + 1, interval or 1)


def blend(previous: Sequence[float] | None, estimate: Sequence[float], momentum: float) -> tuple[float, ...]:
    """One update of the scores [rows]: momentum * previous + (1 - momentum) * estimate.

    previous: None before the first estimate, which is taken as is; else of as many rows (ValueError).
    momentum: in [0, 1); 0 forgets the previous scores.
    """
    if not 0 <= momentum < 1:
        raise GenerationError(
            f"The momentum of document weights lies in [0, 1), it is {momentum}; 0 is none."
        )
    if previous is None:
        return tuple(estimate)
    return tuple(momentum * old + (1.0 - momentum) * new for old, new in zip(previous, estimate, strict=True))


def text_to_score(query: str, answer: str) -> str:
    """The text x_<kappa that documents are scored against: the question and the answer so far."""
    return f"{query} {answer.strip()}" if answer else query


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
