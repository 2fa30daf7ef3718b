"""Numbers of experiments: averages that stand lack of data, and values as JSON can hold them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, nan
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


def to_plain(value: Any, digits: int | None = None) -> Any:
    """A value as JSON can hold it: nan and infinities become None, keys become texts.

    digits: of floats; None keeps all.
    """
    if isinstance(value, dict):
        return {str(key): to_plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, digits) for item in value]
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return value if digits is None else round(value, digits)
    return str(value) if isinstance(value, str) else value  # also of a StrEnum


def from_plain(value: Any) -> Any:
    """Reads what `to_plain` wrote: None is nan, in nested objects too."""
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    return nan if value is None else value
