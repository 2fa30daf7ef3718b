"""The line of decode time over context length: fitted once to a profile, then adapted to measurements at runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite

from tandem.errors import TandemError

ZETA = 0.2
"""Weight of one new decode time against everything before it (DRAGON 5.2 leaves the value open)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLine:
    """c(t) = (k_a / k_b) t + k_c: seconds for one decoded token at a context of t tokens (DRAGON 5.2).

    k_a and k_b are means over the points of the profile, of (c - k_c) t and of t^2. Their quotient is the least-squares
    slope (its residuals are orthogonal to t), and with the intercept frozen they are exactly the moments into which
    `update` mixes a new point's (c - k_c) t and t^2. So zeta is the share of one new point against the whole past. With
    sums over N points it would be N times less, and with moments about the mean of t many times more, since t^2 is far
    above the variance of t.
    """

    k_a: float  # mean of (c - k_c) t, second tokens
    k_b: float  # mean of t^2, tokens^2; above 0
    k_c: float  # intercept, seconds
    start: float  # context length at which decoding began in the profile: the prompt, in tokens

    @property
    def slope(self) -> float:
        """Additional seconds per token of context."""
        return self.k_a / self.k_b

    def predict(self, t: float) -> float:
        """Seconds for a token decoded at a context of t tokens; never below 0."""
        return max(0.0, self.slope * t + self.k_c)

    def update(self, t: float, seconds: float, zeta: float = ZETA) -> DecodeLine:
        """The line after a token that took `seconds` at a context of t tokens; the intercept stays (DRAGON 5.2).

        zeta: weight of this observation, from 0 to 1; TandemError otherwise. A value that is not finite or below 0 was
        not measured and changes nothing, as in `MovingAverage`.
        """
        if not 0 <= zeta <= 1:
            raise TandemError(
                f"The weight of a new decode time must lie in [0, 1], got {zeta}; the default is {ZETA}."
            )
        if not (_is_amount(t) and t > 0 and _is_amount(seconds)):
            return self
        return replace(
            self,
            k_a=(1 - zeta) * self.k_a + zeta * (seconds - self.k_c) * t,
            k_b=(1 - zeta) * self.k_b + zeta * t * t,
        )

    @classmethod
    def fit(
        cls, lengths: Sequence[float], seconds: Sequence[float], *, start: float | None = None
    ) -> DecodeLine:
        """The least-squares line through (lengths[i] tokens, seconds[i]). start: default the smallest length.

        Raises TandemError unless there are two different lengths, and every value is finite and at least 0.
        """
        _check_points(lengths, seconds)
        count = len(lengths)
        mean_t, mean_c = fsum(lengths) / count, fsum(seconds) / count
        pairs = list(zip(lengths, seconds, strict=True))
        slope = fsum((t - mean_t) * (c - mean_c) for t, c in pairs) / fsum((t - mean_t) ** 2 for t in lengths)
        k_b = fsum(t * t for t in lengths) / count
        return cls(
            k_a=slope * k_b,
            k_b=k_b,
            k_c=mean_c - slope * mean_t,
            start=float(min(lengths) if start is None else start),
        )

    def to_tuple(self) -> tuple[float, float, float, float]:
        """(k_a, k_b, k_c, start), for the control plane."""
        return (self.k_a, self.k_b, self.k_c, self.start)

    @classmethod
    def from_tuple(cls, values: Sequence[float]) -> DecodeLine:
        """Inverse of `to_tuple`. Raises TandemError unless these are four finite numbers with k_b above 0."""
        is_line = len(values) == 4 and all(isfinite(value) for value in values) and values[1] > 0
        if not is_line:
            raise TandemError(
                f"A decode line must be four finite numbers with the second above 0, got {list(values)}; "
                "run the same version of Tandem everywhere."
            )
        k_a, k_b, k_c, start = map(float, values)
        return cls(k_a=k_a, k_b=k_b, k_c=k_c, start=start)


def _check_points(lengths: Sequence[float], seconds: Sequence[float]) -> None:
    if len(lengths) != len(seconds):
        raise TandemError(
            f"Each context length needs one decode time, got {len(lengths)} lengths and {len(seconds)} times; "
            "measure again."
        )
    wrong = [value for value in (*lengths, *seconds) if not _is_amount(value)]
    if wrong:
        raise TandemError(
            f"Context lengths and decode times must be finite and at least 0, got {wrong[0]}; measure again."
        )
    if len(set(lengths)) < 2:
        raise TandemError(
            f"A line needs two different context lengths, got {len(set(lengths))}; decode more tokens."
        )


def _is_amount(value: float) -> bool:
    return isfinite(value) and value >= 0
