"""Rules of one token that others have, over rows of the same documents, at temperature 0.

Each party has a row per document and one without any. Of row i, l_i are its log probabilities, b those of the bare row
of its party; r_i in (0, 1] says how relevant its document is.

    pced     PCED (arXiv 2601.08670): the row with the largest max_x (1 + beta_i) l_i(x) - beta_i b(x) + gamma log r_i
             gives its token; beta_i is the Jensen-Shannon divergence, in bits, of l_i and b at the first token
    nbce     NBCE (Su 2023): the row k of least entropy, and of it the token with the largest
             (1 + beta) l_k(x) - beta b(x)
    delta    for unequal models (SpecSteer, arXiv 2603.16219): what the cloud's rows say, plus what notes change in the
             device's model, log sum_i w_i exp l_i(x) - b(x), by DELTA_NATS at most
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.engine.drafter import log_mixture
from tandem.topology import PARTIES, Party

LogRows: TypeAlias = NDArray[np.float64]
"""[rows, vocab], or [vocab]."""
GAMMA, BETA = 2.5, 0.25
"""PCED's weight of relevance, NBCE's of the bare row, as their authors have them."""
DELTA_NATS = 4.0
LEAST_RELEVANCE, LEAST_LOG = 1e-3, -1e4


class PartyRows(NamedTuple):
    """What the rows of one party say after the same tokens."""

    documents: LogRows  # [documents, vocab]
    bare: LogRows  # [vocab]
    relevance: Sequence[float]  # [documents]


Rows: TypeAlias = Mapping[Party, PartyRows]
"""Of the parties with documents."""
Choose: TypeAlias = Callable[[Rows, Rows], int]
"""The next token, given the rows after the tokens so far, and after none."""


def log_rows(logits: LogRows) -> LogRows:
    """Log probabilities of each row, finite also for what a party cannot say."""
    shifted = np.asarray(logits, np.float64) - logits.max(axis=-1, keepdims=True)
    said = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.asarray(np.maximum(said, LEAST_LOG))


def pced(rows: Rows, first: Rows) -> int:
    """The token of the best expert."""
    best, token = -np.inf, 0
    for party, (documents, bare, relevance) in rows.items():
        for place, (row, share) in enumerate(zip(documents, relevance, strict=True)):
            beta = divergence(first[party].documents[place], first[party].bare)
            contrast = (1 + beta) * row - beta * bare
            chosen = int(contrast.argmax())
            score = contrast[chosen] + GAMMA * np.log(max(share, LEAST_RELEVANCE))
            if score > best:
                best, token = score, chosen
    return token


def nbce(rows: Rows, first: Rows) -> int:
    """The token of the row that is surest, without what its model says anyway."""
    candidates = [(entropy(row), row, each.bare) for each in rows.values() for row in each.documents]
    _, row, bare = min(candidates, key=lambda candidate: candidate[0])
    return int(((1 + BETA) * row - BETA * bare).argmax())


def delta(rows: Rows, first: Rows) -> int:
    """The token of the cloud's model, steered by what the notes change in the device's."""
    cloud, device = (rows.get(party) for party in reversed(PARTIES))
    if cloud is None or device is None:
        alone = cloud or device
        assert alone is not None
        return int(_mixture(alone).argmax())
    change = np.clip(_mixture(device) - device.bare, -DELTA_NATS, DELTA_NATS)
    return int((_mixture(cloud) + change).argmax())


RULES: Mapping[str, Choose] = {"pced": pced, "nbce": nbce, "delta": delta}
"""By the names of methods."""


def divergence(first: LogRows, second: LogRows) -> float:
    """The Jensen-Shannon divergence of two distributions, in bits: 0 to 1. first, second: [vocab]."""
    middle = np.logaddexp(first, second) - np.log(2)
    parts = ((np.exp(each) * (each - middle)).sum() for each in (first, second))
    return float(np.clip(sum(parts) / 2 / np.log(2), 0.0, 1.0))


def entropy(row: LogRows) -> float:
    """In nats. row: [vocab]."""
    return float(-(np.exp(row) * row).sum())


def _mixture(rows: PartyRows) -> LogRows:
    weights = np.log(np.maximum(rows.relevance, LEAST_RELEVANCE))
    return log_mixture(rows.documents, weights, 1.0)
