"""The record of what one party makes of one step of an answer, from its model to the ballot."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from tandem.aggregation.document_weights import Evidence


@dataclass(frozen=True, slots=True)
class Step:
    """A party's draft or vote after one prefix.

    Its decoder keeps it by the digest of the prefix. It travels in a `Vote`, and coordinators keep it likewise.
    """

    step: int  # output position, 0-based: length of the prefix
    token: int | None = (
        None  # drawn from the distribution, or chosen by the rule; at a coordinator None: no draft
    )
    payload: bytes | None = None  # what is sent of the distribution: it encoded, or the token drawn from it
    decode_us: int = 0  # time of the pass, microseconds
    log_weight: float | None = None  # of the party's rows, as it is sent; None: its weight is fixed
    evidence: Evidence = ()  # in the decoder: of the rows, after the token that follows
    masses: tuple[float, ...] = ()  # in the decoder: w_d p_d of it in each row; none: weights do not move
    arrived_s: float = nan  # at a coordinator: since the query was opened
