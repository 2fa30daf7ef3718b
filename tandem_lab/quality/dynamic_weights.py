"""The document weights of DRAGON (section 4.1): relevance estimated again and again while the answer grows.

A rule of the laboratory, for the paper's figure 5; Tandem itself weighs documents by evidence
(`tandem.aggregation.document_weights`). A fixed lag makes it a function of the prefix. NOT in the paper: the lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.errors import GenerationError


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
