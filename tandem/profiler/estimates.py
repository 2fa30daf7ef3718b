"""Estimates of both parties and of the link: measurements of committed steps in, estimates out.

Only round trips are used, never one-way times, so the clocks of the two hosts need not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, fsum, isfinite, isnan, nan

from tandem.errors import TandemError
from tandem.messages import Observation
from tandem.topology import PARTIES, Party

# ---- Moving averages ---------------------------------------------------------------------------------------


class MovingAverage:
    """Exponential moving average; nan until the first finite value."""

    __slots__ = ("num_values", "share", "value")

    def __init__(self, share: float = 0.2) -> None:
        """share: weight of a new value, in (0, 1]."""
        self.share = share
        self.value = nan
        self.num_values = 0

    def add(self, value: float) -> None:
        """Take in `value`; nan and infinities are ignored."""
        if not isfinite(value):
            return
        self.value = value if self.num_values == 0 else self.value + self.share * (value - self.value)
        self.num_values += 1


# ---- The line of decode time over context length -----------------------------------------------------------


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


# ---- How long one party takes per draft --------------------------------------------------------------------


OUTLIER = 3.0
"""Decode times above this multiple of the average are clamped to it: a page fault is not a new decode time. If a party
really becomes slower, the average follows within a few drafts."""
MIN_VALUES = 3
"""Times after which the average is reliable enough to clamp others."""
SHARE = 0.2
"""Weight of a new decode time in the moving average."""


class DecodeTime:
    """Decode time of one party, in seconds per draft.

    The paper's line models how decode time grows with the context, but adapts slowly if the machine's speed has changed
    since it was profiled. NOT in the paper: we also keep a moving average and predict with whichever had the smaller
    recent error.
    """

    def __init__(self, line: DecodeLine | None = None) -> None:
        """line: of the offline stage, for this model, machine and number of rows; None: only measured times count."""
        self.line = line
        self._average = MovingAverage(SHARE)
        self._line_error = MovingAverage(SHARE)  # mean absolute error of each prediction, in seconds
        self._average_error = MovingAverage(SHARE)

    def predict(self, step: int) -> float:
        """Seconds that the draft of `step` will take; nan if nothing is known."""
        if self.line is None:
            return self._average.value
        is_average_better = self._average_error.value < self._line_error.value  # false if either is nan
        return self._average.value if is_average_better else self._on_line(step)

    def add(self, step: int, seconds: float) -> str | None:
        """Take in a measured time; one sentence if it was ignored or clamped. nan (not measured) is skipped."""
        if seconds != seconds:
            return None
        if not isfinite(seconds) or seconds <= 0:
            return (
                f"A decode time of {seconds:g} s at step {step} was ignored: it must be finite and above 0."
            )
        expected_s = self._average.value
        is_outlier = self._average.num_values >= MIN_VALUES and seconds > OUTLIER * expected_s
        clamped_s = OUTLIER * expected_s if is_outlier else seconds
        self._take(step, clamped_s)
        if not is_outlier:
            return None
        return (
            f"A decode time of {seconds:g} s at step {step} was clamped to {clamped_s:g} s: "
            f"{expected_s:g} s was expected."
        )

    def _take(self, step: int, seconds: float) -> None:
        self._average_error.add(abs(self._average.value - seconds))
        self._average.add(seconds)
        if self.line is not None:
            self._line_error.add(abs(self._on_line(step) - seconds))
            self.line = self.line.update(self.line.start + step, seconds)

    def _on_line(self, step: int) -> float:
        assert self.line is not None
        return self.line.predict(self.line.start + step)


ACCEPTANCE_SHARE = 0.1
"""Weight of a new step in the moving average of acceptance: about 20 steps count."""
RTT_SHARE = 0.5
"""Weight of a new round trip in the real-time estimate."""
RTT_AVERAGE_SHARE = 0.1
"""Weight of a new round trip in the historical average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Estimates for one step, units as in `Observation`; nan where nothing is known."""

    decode_s: Mapping[Party, float]
    acceptance: Mapping[Party, float]
    rtt_s: float  # the real-time estimate
    rtt_average_s: float  # the historical average
    bytes_per_s: float  # the last measured

    def window(self, own: Party) -> int:
        """The draft window of `own`."""
        return draft_window(self.rtt_s, self.decode_s[own], self.decode_s[own.other])


SHORTEST = 3
"""The least draft window of parties that have been measured."""


def draft_window(rtt_s: float, own_decode_s: float, peer_decode_s: float) -> int:
    """W = ceil((rtt + c_own) / max(c) - 0.1) + 2: drafts that keep both parties busy for one round trip.

    One more than needed at an even pace: after a rejection the faster party has to catch up with the slower one. A
    tenth of a pass is worth no draft, so the least is `SHORTEST`: what the peer says is here as soon as an own draft.
    Values in seconds. Without a measured round trip or own decode time the window is 2.
    """
    if not (isfinite(rtt_s) and isfinite(own_decode_s)) or own_decode_s <= 0:
        return 2
    slower_s = max(own_decode_s, peer_decode_s) if isfinite(peer_decode_s) else own_decode_s
    return ceil((rtt_s + own_decode_s) / slower_s - 0.1) + 2


class Estimator:
    """Averages what the steps of a session show."""

    def __init__(self, lines: Mapping[Party, DecodeLine]) -> None:
        """lines: the offline profiles, of the parties that have one."""
        self._decode = {party: DecodeTime(lines.get(party)) for party in PARTIES}
        self._acceptance = {party: MovingAverage(ACCEPTANCE_SHARE) for party in PARTIES}
        self._rtt_s = MovingAverage(RTT_SHARE)
        self._rtt_average_s = MovingAverage(RTT_AVERAGE_SHARE)
        self._bytes_per_s = nan

    def add(self, observed: Observation) -> tuple[str, ...]:
        """Take in one step; a sentence for each decode time that was ignored or clamped."""
        notes = []
        for party, decode_s, rate in zip(PARTIES, observed.decode_s, observed.acceptance, strict=True):
            note = self._decode[party].add(observed.step, decode_s)
            notes += [] if note is None else [f"{party}: {note}"]
            self._acceptance[party].add(rate)
        self._rtt_s.add(observed.rtt_s)
        self._rtt_average_s.add(observed.rtt_s)
        if not isnan(observed.bytes_per_s):
            self._bytes_per_s = observed.bytes_per_s
        return tuple(notes)

    def estimate(self, step: int) -> Estimates:
        """The profile that is expected at `step`."""
        return Estimates(
            decode_s={party: self._decode[party].predict(step) for party in PARTIES},
            acceptance={party: self._acceptance[party].value for party in PARTIES},
            rtt_s=self._rtt_s.value,
            rtt_average_s=self._rtt_average_s.value,
            bytes_per_s=self._bytes_per_s,
        )

    def carry_over(
        self, lines: Mapping[Party, DecodeLine], *, decode_of: Collection[Party], acceptance: bool
    ) -> Estimator:
        """An independent estimator for the next session: the link's estimates, and those that still apply.

        decode_of: parties whose decode times still apply; the others start from `lines`. acceptance: whether the
        acceptance rates still apply.
        """
        estimator, fresh = deepcopy(self), Estimator(lines)
        for party in PARTIES:
            if party not in decode_of:
                estimator._decode[party] = fresh._decode[party]
        if not acceptance:
            estimator._acceptance = fresh._acceptance
        return estimator
