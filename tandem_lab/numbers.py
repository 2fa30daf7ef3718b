"""Numbers of experiments: averages that stand lack of data, and values as JSON holds them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from statistics import median
from typing import Any


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; nan of nothing."""
    return sum(values) / len(values) if values else nan


def median_of(values: Sequence[float]) -> float:
    """The median; nan of nothing."""
    return median(values) if values else nan


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all does not exceed; nan of nothing."""
    return sorted(values)[ceil(share * len(values)) - 1] if values else nan


def ratio(part: float, whole: float) -> float:
    """Their quotient; nan of nothing."""
    return part / whole if whole else nan


def from_plain(value: Any) -> Any:
    """Reads what `tandem.client.answers.to_plain` wrote: None is nan, in nested objects too."""
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    return nan if value is None else value
