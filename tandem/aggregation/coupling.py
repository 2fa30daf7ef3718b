"""Coupled drafts: drafts and target are the winners of one race with shared noise.

The method is that of Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative
decoding" (arXiv 2408.07978). NOT in the paper (DRAGON). Ours is its use between parties that all draft and all vote:
nobody waits for a verdict, since whoever holds the same distributions and the seed finds the same target.

argmax_i [log q_i + G_i] with Gumbel noise G_i is argmax_i q_i / E_i with exponential E_i = exp(-G_i): the first
arrival of independent exponential clocks with rates q_i, hence an exact draw from q. Since the noise of a token does
not depend on the distribution, two similar distributions mostly pick the same winner.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution, largest
from tandem.topology import Party

# ---- Logarithm and exponential with the same bits on every machine -----------------------------------------


# ln 2 in two parts: the first has 32 trailing zero bits, so that k * _LN2_HIGH is exact for every exponent k.
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
_SQRT_HALF = float(_SQRT_HALF_BITS.view(np.float64))
_EXPONENT_BIAS = 1023

# 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...); |s| <= 3 - 2 sqrt 2, so the first term left out is below 2**-58.
_ATANH_TERMS = tuple(2.0 / (2 * k + 1) for k in range(1, 11))
# exp(r) on |r| <= ln 2 / 2: the first term left out, r**14 / 14!, is below 2**-57.
_EXP_FACTORIALS = (1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800)
_EXP_TERMS = tuple(1.0 / factorial for factorial in _EXP_FACTORIALS)
_EXP_OVERFLOW = 709.782712893384
_EXP_UNDERFLOW = -746.0


def log_normal(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive, finite, normal numbers, any shape; other values give nonsense."""
    bits = x.view(np.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> np.int64(52)  # floor: the mantissa lands in [sqrt 1/2, sqrt 2)
    mantissa = (bits - (exponent << np.int64(52))).view(np.float64)
    f = mantissa - 1.0  # exact
    s = f / (f + 2.0)
    z = s * s
    tail = np.full_like(z, _ATANH_TERMS[-1])
    for term in _ATANH_TERMS[-2::-1]:
        tail *= z
        tail += term
    # log(1+f) = f - s (f - z*tail): the small correction is rounded, not the leading term.
    small = s * (f - z * tail)
    k = exponent.astype(np.float64)
    return k * _LN2_HIGH + (f - (small - k * _LN2_LOW))


def log_scalar(x: float) -> float:
    """`log_normal` of one number: the same operations on Python's floats, to the same bits in a tenth of the time."""
    mantissa, k = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, k = 2.0 * mantissa, k - 1
    f = mantissa - 1.0
    s = f / (f + 2.0)
    z = s * s
    tail = _ATANH_TERMS[-1]
    for term in _ATANH_TERMS[-2::-1]:
        tail = tail * z + term
    small = s * (f - z * tail)
    return k * _LN2_HIGH + (f - (small - k * _LN2_LOW))


def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential of any float64 array; overflow gives inf, underflow goes through subnormals to 0."""
    x = np.array(x, dtype=np.float64)
    is_ordinary = (x >= _EXP_UNDERFLOW) & (x <= _EXP_OVERFLOW)
    fit = np.where(is_ordinary, x, 0.0)
    k = np.floor(fit * _LOG2_E + 0.5)
    r = (fit - k * _LN2_HIGH) - k * _LN2_LOW
    out = np.full_like(r, _EXP_TERMS[-1])
    for term in _EXP_TERMS[-2::-1]:
        out *= r
        out += term
    half = k.astype(np.int64) >> 1  # two factors, since 2**1024 and 2**-1075 are no doubles
    out = out * _power_of_two(half) * _power_of_two(k.astype(np.int64) - half)
    special = np.where(x > _EXP_OVERFLOW, np.inf, np.where(x < _EXP_UNDERFLOW, 0.0, np.nan))
    return np.where(is_ordinary, out, special)


def exp_scalar(x: float) -> float:
    """`exp` of one number: the same operations on Python's floats, to the same bits in a twentieth of the time."""
    if not _EXP_UNDERFLOW <= x <= _EXP_OVERFLOW:
        return math.inf if x > _EXP_OVERFLOW else 0.0 if x < _EXP_UNDERFLOW else math.nan
    k = math.floor(x * _LOG2_E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    out = _EXP_TERMS[-1]
    for term in _EXP_TERMS[-2::-1]:
        out = out * r + term
    return out * math.ldexp(1.0, k >> 1) * math.ldexp(1.0, k - (k >> 1))


def _power_of_two(k: NDArray[np.int64]) -> NDArray[np.float64]:
    """2**k for -1022 <= k <= 1023, by writing the exponent field."""
    return ((k + _EXPONENT_BIAS) << np.int64(52)).view(np.float64)


# ---- Counter-based randomness: a number is a hash ----------------------------------------------------------


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB

_ROUNDS = (np.uint64(30), np.uint64(_MULTIPLY_1)), (np.uint64(27), np.uint64(_MULTIPLY_2))

FEW = 32
"""Numbers are computed one by one for up to so many ids, which is faster than with arrays."""
_REMEMBERED = 4096
"""Numbers that are remembered: both drafts, lists and the decision of a step ask for those of the same few tokens."""
MANY = 1 << 14
"""Numbers of so many ids at a time stay in the processor's cache."""
_COUNTERS = np.arange(MANY, dtype=np.uint64) * np.uint64(_GOLDEN)


class Purpose(IntEnum):
    """The purpose of a random number; each has its own stream. The values are part of the protocol."""

    COUPLED = 1  # the noise that drafts and target share
    DRAFT_DEVICE = 2  # the device's draft under Algorithm 1
    DRAFT_CLOUD = 3  # the cloud's draft under Algorithm 1
    DECISION = 4  # the outcome of Algorithm 1, given the two drafts
    PLACEMENT = 5  # who aggregates, under random placement
    ACCEPTANCE = 6  # whether a proposed token stands, under the rejection rule
    CORRECTION = 7  # the token that replaces it, or follows a proposal that stands as a whole
    OWNER = 8  # whose draft is the token, under the lottery rule

    @classmethod
    def draft(cls, party: Party) -> Purpose:
        """The stream from which a party draws its drafts."""
        return cls.DRAFT_DEVICE if party is Party.DEVICE else cls.DRAFT_CLOUD


def uniforms(
    seed: int, purpose: Purpose, step: int, ids: NDArray[np.int64] | NDArray[np.int32]
) -> NDArray[np.float64]:
    """Uniform numbers strictly inside (0, 1), one per id, [n]; a multiple of 2**-53, never 0 or 1.

    seed: any integer, taken modulo 2**64. step, ids: >= 0.
    """
    first, second = _keys(seed, purpose, step)
    if ids.size <= FEW:
        return np.array([_uniform(first, second, token) for token in ids.tolist()], dtype=np.float64)
    counter = ids.astype(np.uint64)
    counter *= np.uint64(_GOLDEN)
    counter += np.uint64(first)
    mix_in_place(counter)
    counter ^= np.uint64(second)  # a second keyed round, so that two steps are not shifts of one sequence
    mix_in_place(counter)
    counter >>= np.uint64(12)
    values = counter.astype(np.float64)  # 52 bits: exact, and so is adding a half
    values += 0.5
    values *= 2.0**-52
    return values


def coarse_uniforms(seed: int, purpose: Purpose, step: int, start: int, count: int) -> NDArray[np.uint32]:
    """floor(u * 2**23) of the ids from `start` on, [count], in half the time of `uniforms`. 0 <= count <= MANY."""
    first, second = _keys(seed, purpose, step)
    counter = _COUNTERS[:count] + np.uint64((start * _GOLDEN + first) & _MASK)
    mix_in_place(counter)
    counter ^= np.uint64(second)
    _mix_high_bits(counter, np.empty_like(counter))
    counter >>= np.uint64(41)
    return counter.astype(np.uint32)


def uniform(seed: int, purpose: Purpose, step: int) -> float:
    """One uniform number inside (0, 1) for a purpose that needs a single one per step."""
    return _uniform(*_keys(seed, purpose, step), 0)


def exponentials(
    seed: int, purpose: Purpose, step: int, ids: NDArray[np.int64] | NDArray[np.int32]
) -> NDArray[np.float64]:
    """Exponential variates E = -log u with mean 1, one per id, [n]; positive and finite."""
    if ids.size > FEW:
        return -log_normal(uniforms(seed, purpose, step, ids))
    first, second = _keys(seed, purpose, step)
    return np.array([_exponential(first, second, token) for token in ids.tolist()], dtype=np.float64)


@lru_cache(maxsize=_REMEMBERED)
def _exponential(first: int, second: int, token: int) -> float:
    """The variate of one id, from the keys of its step."""
    return -log_scalar(_uniform(first, second, token))


@lru_cache(maxsize=_REMEMBERED)
def _keys(seed: int, purpose: Purpose, step: int) -> tuple[int, int]:
    """Two 64-bit keys for one (seed, purpose, step)."""
    state = mix((seed & _MASK) ^ _GOLDEN)
    state = mix(state + int(purpose) * _GOLDEN)
    state = mix(state + (step + 1) * _GOLDEN)
    return mix(state + _GOLDEN), mix(state + 2 * _GOLDEN)


@lru_cache(maxsize=_REMEMBERED)
def _uniform(first: int, second: int, token: int) -> float:
    """The number of one id, from the keys of its step."""
    counter = mix(mix(token * _GOLDEN + first) ^ second)
    return ((counter >> 12) + 0.5) * 2.0**-52


def mix(value: int) -> int:
    """A bijection of the 64-bit integers in which every input bit affects every output bit."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MULTIPLY_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLY_2) & _MASK
    return value ^ (value >> 31)


def mix_in_place(values: NDArray[np.uint64]) -> None:
    """`mix` on an array; unsigned products wrap by definition."""
    shifted = np.empty_like(values)
    _mix_high_bits(values, shifted)
    np.right_shift(values, np.uint64(31), out=shifted)
    values ^= shifted


def _mix_high_bits(values: NDArray[np.uint64], shifted: NDArray[np.uint64]) -> None:
    """`mix_in_place` but for its last step, which leaves the first 31 bits as they are. shifted: for use in between."""
    for shift, factor in _ROUNDS:
        np.right_shift(values, shift, out=shifted)
        values ^= shifted
        values *= factor


# ---- The winner, or the first few, of a race over the whole vocabulary -------------------------------------


_FIRST = 64
"""Tokens whose scores are taken at least, to set the mark."""
_FEW = 1024
"""All scores of so many tokens are taken: the mark costs more than it saves."""
_ONE = np.uint32(0x3F800000)  # the bits of 1.0 in float32; those of a number in [0, 1) go behind them
_REACH = np.float32(2.0 - 2.0**-20)
"""The least 1 + u + p / mark of a token that reaches the mark, in float32: below 2 by more than all rounding,
u's first 23 bits included."""


def lazy_race(dense: NDArray[np.floating], *, seed: int, step: int) -> int:
    """argmax_i p_i / E_i, the coupled draw from a distribution; of equal scores the lowest id.

    dense: [vocab], >= 0, not all zero, not necessarily normalised.
    """
    ids, scores = best_scores(dense, 1, seed=seed, step=step)
    return int(ids[np.argmax(scores)])


def best_scores(
    dense: NDArray[np.floating], count: int, *, seed: int, step: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(ids [n] ascending, scores p_i / E_i [n]) of the `count` best, of equal scores the lowest ids.

    n = count, or fewer if fewer tokens have a probability above zero. dense: as for `lazy_race`.
    """

    def best(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        scores = dense[ids] / exponentials(seed, Purpose.COUPLED, step, ids)
        if ids.size > count:
            places = largest(scores, count)
            ids, scores = ids[places], scores[places]
        positive = scores > 0.0
        return ids[positive], scores[positive]

    if dense.size <= max(_FEW, count):
        return best(np.arange(dense.size))
    scores = best(largest(dense, min(max(_FIRST, 4 * count), dense.size)))[1]
    mark = float(scores.min()) if scores.size == count else 0.0
    return best(_rivals(dense, mark, seed, step))


def _rivals(dense: NDArray[np.floating], mark: float, seed: int, step: int) -> NDArray[np.int64]:
    """Ids of all tokens with a score of at least `mark` and above zero, and of a few others; ascending.

    In pieces that stay in the processor's cache. With a mark so low that its inverse is infinite, of all with p > 0.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scale = np.divide(1.0, mark)
        rivals = []
        for start in range(0, dense.size, MANY):
            piece = dense[start : start + MANY]
            bits = coarse_uniforms(seed, Purpose.COUPLED, step, start, piece.size)
            bits |= _ONE
            reach = bits.view(np.float32)  # 1 + u, cut off
            reach += np.multiply(piece, scale, dtype=dense.dtype).astype(np.float32, copy=False)
            rivals.append(np.flatnonzero(reach >= _REACH) + start)
    return np.concatenate(rivals)


MANY_IDS = 4096
"""Tokens of a whole vocabulary from which the race is run without a logarithm for each."""


def noise(seed: int, step: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exponential clocks of one step at the given tokens, [n]; the same for every distribution and party."""
    return exponentials(seed, Purpose.COUPLED, step, ids)


def race(distribution: Distribution, clocks: NDArray[np.float64]) -> int:
    """The token that wins the race, argmax_i q_i / E_i; clocks: E at the ids of the distribution, [n].

    The distribution has no rest: `Distribution.spread` gives every token its own probability. Ties go to the lowest id.
    IEEE 754 fixes how a division rounds, so the winner is the same on every machine.
    """
    return int(distribution.ids[np.argmax(distribution.probabilities / clocks)])


def coupled_draw(distribution: Distribution, *, seed: int, step: int) -> int:
    """An exact draw from the distribution, as a function of (distribution, seed, step) alone."""
    distribution = distribution.spread()
    if distribution.ids.size >= MANY_IDS and int(distribution.ids[-1]) == distribution.ids.size - 1:
        return lazy_race(distribution.probabilities, seed=seed, step=step)  # the same winner, and faster
    return race(distribution, noise(seed, step, distribution.ids))
