"""Log probabilities: where they can be had, what a peer may send of them, and as fields of an event.

Who decides a step knows the target: the query's home by votes in full, or in mode speculative the only voter, which
sends them with its verdicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tandem.aggregation.distributions import TOLERANCE
from tandem.events import TokenLogprob
from tandem.messages import Logprobs
from tandem.modes.spec import SessionSpec

MAX_TOP_LOGPROBS = 20
"""As OpenAI has it."""


@dataclass(frozen=True, slots=True)
class LogprobLimits:
    """What a decider may send of one step."""

    num_top: int  # likeliest tokens, at most
    vocab_size: int

    @classmethod
    def of(cls, spec: SessionSpec) -> LogprobLimits | None:
        """Of a query; None: no peer sends any."""
        if spec.num_logprobs is None or not spec.rules.tells_logprobs:
            return None
        return cls(spec.num_logprobs, spec.vocab_size)

    def allow(self, known: Logprobs) -> bool:
        """Whether some distribution over the vocabulary has these."""
        ids, values = known.top_ids, (known.logprob, *known.top_logprobs)
        if not len(set(ids)) == len(ids) == len(known.top_logprobs) <= self.num_top:
            return False
        if any(index >= self.vocab_size for index in ids) or not all(
            -math.inf < value <= TOLERANCE for value in values
        ):
            return False
        return math.fsum(map(math.exp, known.top_logprobs)) <= 1.0 + len(values) * TOLERANCE


def name_logprobs(token: int, known: Logprobs | None) -> dict[str, Any]:
    """Fields of a `TokenEvent`."""
    if known is None:
        return {}
    top = zip(known.top_ids, known.top_logprobs, strict=True)
    return {
        "logprob": TokenLogprob(token=token, logprob=known.logprob),
        "top_logprobs": tuple(TokenLogprob(token=index, logprob=logprob) for index, logprob in top),
    }
