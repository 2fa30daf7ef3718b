"""How probable a committed token was, and its likeliest alternatives, in the target that it was drawn from."""

from __future__ import annotations

import math
from typing import NamedTuple

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.selection import largest


class TargetLogprobs(NamedTuple):
    """Natural logarithms of target probabilities."""

    token: float  # of the committed token
    top: tuple[tuple[int, float], ...]  # (id, logarithm) of the likeliest tokens, the likeliest first


def log_probabilities(target: Distribution, token: int, num_top: int) -> TargetLogprobs:
    """Of a token of the target and of its `num_top` likeliest ones, of equals those of the lowest ids.

    There are fewer if fewer have a probability above zero: sampling options and codecs exclude tokens.
    """
    target = target.spread()
    places = largest(target.probabilities, min(num_top, len(target))) if num_top > 0 else ()
    rows = [(int(target.ids[place]), float(target.probabilities[place])) for place in places]
    rows.sort(key=lambda row: -row[1])  # stable, and places ascend
    return TargetLogprobs(
        math.log(target.probability(token)),
        tuple((index, math.log(probability)) for index, probability in rows if probability > 0.0),
    )
