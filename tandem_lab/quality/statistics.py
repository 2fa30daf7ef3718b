"""How sure a measured number is: Wilson's interval and McNemar's paired test. Plain numbers in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z_95 = 1.959964


def wilson(num_right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. count: at least 1."""
    share, z2 = num_right / count, Z_95 * Z_95
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, float]:
    """Questions that only the first got right, that only the second did, and the exact two-sided p-value.

    Both of one length, question by question. The p-value is that of a fair coin over the questions that differ.
    """
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    count, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(count, k) for k in range(fewer + 1)) / 2**count
    return only_first, only_second, min(1.0, 2 * tail)
