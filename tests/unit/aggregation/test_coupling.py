"""Counter-based randomness, the race, and log and exp of every machine. Independence and statistics: tests/laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.aggregation.coupling import (
    FEW,
    MANY,
    Purpose,
    coarse_uniforms,
    exp,
    exp_scalar,
    exponentials,
    log_normal,
    log_scalar,
    noise,
    race,
    uniform,
    uniforms,
)
from tandem.aggregation.distributions import Distribution
from tandem.topology import Party

# ---- counter-based randomness: range, reproducibility, known answers. Independence: tests/laws ---------------

IDS = np.array([0, 1, 2, 151_935, 262_143])


def test_values_lie_strictly_inside_the_unit_interval() -> None:
    u = uniforms(5, Purpose.COUPLED, 0, np.arange(1 << 18))
    assert 0.0 < u.min() < 1e-4
    assert 1.0 > u.max() > 1 - 1e-4
    assert np.isfinite(exponentials(5, Purpose.COUPLED, 0, np.arange(1 << 18))).all()


@pytest.mark.parametrize("function", [uniforms, exponentials])
def test_few_numbers_are_the_same_bits_as_many(function: Callable[..., np.ndarray]) -> None:
    ids = np.random.default_rng(6).integers(0, 1 << 18, 8 * FEW)
    for seed, step in ((0, 0), (3, 999), (-5, 7), ((1 << 64) - 1, 12)):
        many = function(seed, Purpose.COUPLED, step, ids)
        for num_ids in (1, 2, FEW):
            assert function(seed, Purpose.COUPLED, step, ids[:num_ids]).tolist() == many[:num_ids].tolist()
        assert uniform(seed, Purpose.COUPLED, step) == uniforms(seed, Purpose.COUPLED, step, ids * 0)[0]


def test_each_party_has_its_own_draft_stream() -> None:
    assert Purpose.draft(Party.DEVICE) != Purpose.draft(Party.CLOUD)


def test_known_answers() -> None:
    """The streams are part of the protocol: both parties must agree to the bit, whatever their versions."""
    assert [u.hex() for u in uniforms(7, Purpose.COUPLED, 3, IDS).tolist()] == UNIFORMS
    assert [e.hex() for e in exponentials(7, Purpose.COUPLED, 3, IDS).tolist()] == EXPONENTIALS


UNIFORMS = [
    "0x1.fb1549e93261cp-3",
    "0x1.ac42d01e029e0p-6",
    "0x1.20645b55d11f4p-3",
    "0x1.f47029bad6105p-1",
    "0x1.49067ec6c3bd0p-5",
]
EXPONENTIALS = [
    "0x1.655c959469924p+0",
    "0x1.d27954c619b79p+1",
    "0x1.f5d61b427b657p+0",
    "0x1.7638930c6838cp-6",
    "0x1.9b7ddc7c11f63p+1",
]


@pytest.mark.parametrize(("start", "count"), [(0, MANY), (0, 1), (3 * MANY, 1000), (2**18 - 5, 5)])
def test_coarse_numbers_are_the_first_bits(start: int, count: int) -> None:
    for step in range(4):
        whole = uniforms(11, Purpose.COUPLED, step, np.arange(start, start + count))
        coarse = coarse_uniforms(11, Purpose.COUPLED, step, start, count)
        assert coarse.tolist() == np.floor(whole * 2.0**23).astype(int).tolist()


# ---- coupled drafts: the race. Its statistics: tests/laws ----------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 65535), st.floats(1e-16, 40.0)), min_size=1, max_size=20))
def test_the_race_is_won_by_the_first_clock(pairs: list[tuple[int, float]]) -> None:
    """Against exact arithmetic: the winner's E/q is the smallest up to the rounding of one division."""
    weights, clocks = [w for w, _ in pairs], [e for _, e in pairs]
    if not any(weights):
        weights[0] = 1
    distribution = Distribution(np.arange(len(pairs)), np.array(weights) / sum(weights))
    arrivals = {
        i: Fraction(clock) / Fraction(float(q))
        for i, (clock, q) in enumerate(zip(clocks, distribution.probabilities, strict=True))
        if q > 0
    }
    winner = race(distribution, np.array(clocks))
    assert arrivals[winner] <= min(arrivals.values()) * (1 + Fraction(1, 2**51))


def test_the_noise_of_a_token_does_not_depend_on_the_law() -> None:
    few, many = np.array([3, 70_000]), np.arange(70_001)
    np.testing.assert_array_equal(noise(1, 2, few), noise(1, 2, many)[few])


# ---- log and exp: accurate to about a unit in the last place, and pinned to the bit --------------------------


def ulps(ours: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(ours - exact) / np.spacing(np.abs(exact))))


def test_log_is_accurate_over_the_whole_range() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.random(20_000), 1.0 + rng.normal(size=20_000) * 1e-3, 2.0 ** rng.uniform(-1022, 1023, 20_000)]
    )
    assert ulps(log_normal(x), np.array([math.log(value) for value in x])) <= 2.0


def test_exp_is_accurate_over_the_whole_range() -> None:
    x = np.random.default_rng(2).uniform(-700.0, 709.7, 20_000)
    assert ulps(exp(x), np.array([math.exp(value) for value in x])) <= 2.0


def test_special_values() -> None:
    with np.errstate(all="ignore"):
        found = exp(np.array([-np.inf, np.inf, np.nan, 0.0, 710.0, -745.1, -800.0]))
    np.testing.assert_array_equal(found, [0.0, np.inf, np.nan, 1.0, np.inf, 5e-324, 0.0])


def test_results_are_pinned_to_the_bit() -> None:
    """Another machine, numpy or compiler must give the very same bits."""
    logs = [x.hex() for x in log_normal(np.array([0.1, 0.5, 0.7071, 3.0, 1e-300])).tolist()]
    exps = [exp_scalar(x).hex() for x in (-40.0, -1.0, -1e-9, 0.3, 100.0)]
    assert logs == LOGS
    assert exps == EXPS


def test_arrays_and_scalars_agree() -> None:
    """Scalars are plain Python floats, which neither vectorise nor contract."""
    x = np.random.default_rng(3).random(1001)
    wide = np.concatenate([x, 1500 * (x - 0.5), [-np.inf, np.inf, 0.0, -0.0, -745.1, 709.782712893384]])
    with np.errstate(all="ignore"):
        assert exp(wide).tolist() == [exp_scalar(value) for value in wide.tolist()]
    assert math.isnan(exp_scalar(math.nan))
    wide = np.concatenate(
        [x, 2.0 ** (2044 * x - 1022), [0.5, 1.0, 2.0], np.sqrt(0.5) + np.spacing(0.5) * np.arange(-1, 2)]
    )
    assert log_normal(wide).tolist() == [log_scalar(value) for value in wide.tolist()]
    assert log_normal(x[::2].copy()).tolist() == log_normal(x)[::2].tolist()


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
