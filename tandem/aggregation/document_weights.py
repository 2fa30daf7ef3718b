"""Document weights: which relevance estimates count at a step, how momentum blends them, what a party weighs by them.

Everything is a function of the step, the interval and the estimates at earlier prefixes, never of timing: a weight that
depended on when an estimate arrived could not be reproduced. A decoder that lacks an estimate waits for it.

NOT in the paper: DRAGON section 4.1 re-estimates "during the decoding"; a fixed lag makes that deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tandem.errors import GenerationError


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
            f"The momentum of document weights must lie in [0, 1), got {momentum}; set 0 for none."
        )
    if previous is None:
        return tuple(estimate)
    return tuple(momentum * old + (1.0 - momentum) * new for old, new in zip(previous, estimate, strict=True))


def text_to_score(query: str, answer: str) -> str:
    """The text x_<kappa that documents are scored against: the question and the answer so far."""
    return f"{query} {answer.strip()}" if answer else query


def log_weight(scores: Sequence[float]) -> float:
    """log h of a party = log-sum-exp of its scores R(d, x) [documents]; no document: -inf. DRAGON Appendix A.1.

    Raises GenerationError as `check_scores` does.
    """
    check_scores(scores)
    largest = max(scores, default=-math.inf)
    if largest == -math.inf:  # -inf - -inf has no value
        return -math.inf
    return largest + math.log(sum(math.exp(score - largest) for score in scores))


def check_scores(scores: Sequence[float]) -> None:
    """Raise GenerationError unless every score is a number below infinity; -inf is a document without weight."""
    if not all(score < math.inf for score in scores):  # nan is not below either
        raise GenerationError(
            f"Document scores must be numbers below infinity, got {list(scores)}; check the scoring model."
        )
