"""Counter-based randomness: a number is a hash of (seed, purpose, step, id), with no state to keep or lose.

Any party computes any number without communicating, in any order, and gets the same bits on every machine, which
coupled drafts need (Daliri, Musco and Suresh, arXiv 2408.07978; NOT in the paper). The mixing function is the 64-bit
finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). It is not a
cryptographic hash: whoever knows the seed knows the draws.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.portable import log_normal, log_scalar
from tandem.topology import Party

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
    """What a number is for; each purpose has its own stream. The values are part of the protocol."""

    COUPLED = 1  # the noise that drafts and target share
    DRAFT_DEVICE = 2  # the device's draft under Algorithm 1
    DRAFT_CLOUD = 3  # the cloud's draft under Algorithm 1
    DECISION = 4  # the outcome of Algorithm 1, given the two drafts
    PLACEMENT = 5  # who aggregates, under random placement
    ACCEPTANCE = 6  # whether a proposed token stands, under the rejection rule
    CORRECTION = 7  # the token that replaces it, or follows a proposal that stands as a whole

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
