"""Portable log and exp: accurate to about a unit in the last place, and pinned to the bit."""

from __future__ import annotations

import math

import numpy as np

from tandem.aggregation import coupling as portable

LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")


def ulps(ours: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(ours - exact) / np.spacing(np.abs(exact))))


def test_log_is_accurate_over_the_whole_range() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.random(20_000), 1.0 + rng.normal(size=20_000) * 1e-3, 2.0 ** rng.uniform(-1022, 1023, 20_000)]
    )
    assert ulps(portable.log_normal(x), np.array([math.log(value) for value in x])) <= 2.0


def test_exp_is_accurate_over_the_whole_range() -> None:
    x = np.random.default_rng(2).uniform(-700.0, 709.7, 20_000)
    assert ulps(portable.exp(x), np.array([math.exp(value) for value in x])) <= 2.0


def test_special_values() -> None:
    with np.errstate(all="ignore"):
        exp = portable.exp(np.array([-np.inf, np.inf, np.nan, 0.0, 710.0, -745.1, -800.0]))
    np.testing.assert_array_equal(exp, [0.0, np.inf, np.nan, 1.0, np.inf, 5e-324, 0.0])


def test_results_are_pinned_to_the_bit() -> None:
    """Another machine, numpy or compiler must give the very same bits."""
    logs = [x.hex() for x in portable.log_normal(np.array([0.1, 0.5, 0.7071, 3.0, 1e-300])).tolist()]
    exps = [portable.exp_scalar(x).hex() for x in (-40.0, -1.0, -1e-9, 0.3, 100.0)]
    assert logs == LOGS
    assert exps == EXPS


def test_arrays_and_scalars_agree() -> None:
    x = np.random.default_rng(3).random(1001)
    wide = np.concatenate([x, 1500 * (x - 0.5), [-np.inf, np.inf, 0.0, -0.0, -745.1, 709.782712893384]])
    with np.errstate(all="ignore"):
        assert portable.exp(wide).tolist() == [portable.exp_scalar(value) for value in wide.tolist()]
    assert math.isnan(portable.exp_scalar(math.nan))
    wide = np.concatenate(
        [x, 2.0 ** (2044 * x - 1022), [0.5, 1.0, 2.0], np.sqrt(0.5) + np.spacing(0.5) * np.arange(-1, 2)]
    )
    assert portable.log_normal(wide).tolist() == [portable.log_scalar(value) for value in wide.tolist()]
    assert portable.log_normal(x[::2].copy()).tolist() == portable.log_normal(x)[::2].tolist()


def one_by_one(x: float) -> float:
    """The logarithm again in plain Python floats, which neither vectorise nor contract."""
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = 2 * mantissa, exponent - 1
    f = mantissa - 1.0
    s = f / (f + 2.0)
    z = s * s
    tail = 0.0
    for k in range(10, 0, -1):
        tail = tail * z + 2.0 / (2 * k + 1)
    small = s * (f - z * tail)
    return exponent * LN2_HIGH + (f - (small - exponent * LN2_LOW))


def test_vector_instructions_change_no_bit() -> None:
    x = np.random.default_rng(4).random(4099)
    assert portable.log_normal(x).tolist() == [one_by_one(value) for value in x.tolist()]


LOGS = [
    "-0x1.26bb1bbb55515p+1",
    "-0x1.62e42fefa39efp-1",
    "-0x1.62e6b3842a25ep-2",
    "0x1.193ea7aad030ap+0",
    "-0x1.5963447f87fb5p+9",
]
EXPS = [
    "0x1.39792499b1a24p-58",
    "0x1.78b56362cef38p-2",
    "0x1.fffffff768fa1p-1",
    "0x1.599058c8c1a96p+0",
    "0x1.3494a9b171bf5p+144",
]
