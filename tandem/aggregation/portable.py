"""Natural logarithm and exponential that give the same bits on every machine.

Built from IEEE 754 + - * / and integer bit operations alone, one rounded operation per array pass, so neither
the platform's libm nor fused multiply-add can change a result. NOT in the paper: both parties must get the same
coupled draft from the same bytes. Accurate to about 1 unit in the last place (tested).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

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
