"""Whether a race list is that of a vote, the slow and obvious way."""

from __future__ import annotations

import numpy as np

from tandem.aggregation.coupling import noise
from tandem.aggregation.race_lists import RaceList
from tandem.codecs.race_lists import read_vote
from tandem.modes.spec import SessionSpec


def is_list_of(payload: bytes, vote: bytes, spec: SessionSpec, step: int) -> bool:
    """Whether `payload` lists the tokens of a vote in full that score best at `step`, each with its probability."""
    found, values = read_vote(payload, spec.vocab_size), read_vote(vote, spec.vocab_size)
    if not isinstance(found, RaceList) or isinstance(values, RaceList):
        return False
    clocks = noise(spec.seed, step, np.arange(values.size)) if spec.sampling.temperature else 1.0
    scores = values.astype(np.float64) / clocks
    best = sorted(np.flatnonzero(values), key=lambda token: (-scores[token], token))
    is_complete = found.ids.size == len(best)
    return (
        sorted(best[: found.ids.size]) == found.ids.tolist()
        and values[found.ids].tobytes() == found.values.tobytes()
        and found.is_complete in (False, is_complete)
    )
