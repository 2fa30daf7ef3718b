"""The nearest lattice point against all lattice points, and known misreadings of the papers as mutants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tandem.codecs.sets import quantise
from tests.unit.codecs.test_sets import compositions

SETTINGS = [(2, 5), (3, 4), (3, 7), (4, 5), (5, 4), (6, 4)]
Quantiser = Callable[[np.ndarray, int], np.ndarray]


def distributions(cells: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(cells)
    return np.concatenate([rng.dirichlet(np.full(cells, each), count // 3) for each in (0.3, 1.0, 5.0)])


def check_is_nearest(function: Quantiser, count: int = 400) -> None:
    """In L1, L2 and the largest difference at once, over every lattice point (Reznik, DCC 2011)."""
    for cells, resolution in SETTINGS:
        points = np.array(compositions(resolution, cells)) / resolution
        for q in distributions(cells, count):
            error = np.abs(function(q, resolution) / resolution - q)
            errors = np.abs(points - q)
            assert error.sum() <= errors.sum(1).min() + 1e-12
            assert (error**2).sum() <= (errors**2).sum(1).min() + 1e-12
            assert error.max() <= errors.max(1).min() + 1e-12


def check_ties_go_to_the_lowest_id(function: Quantiser) -> None:
    assert function(np.array([0.125, 0.125, 0.25, 0.5]), 4).tolist() == [0, 1, 1, 2]
    assert function(np.full(7, 1 / 7), 9).tolist() == [2, 2, 1, 1, 1, 1, 1]
    assert function(np.full(200, 1 / 200), 100).tolist() == [0] * 100 + [1] * 100


def check_counts_sum_to_the_resolution(function: Quantiser) -> None:
    """Also of a truncated distribution, whose mass is below one."""
    rng = np.random.default_rng(3)
    for cells in (1, 2, 16, 64, 1000):
        for resolution in (1, 24, 100, 720):
            counts = function(0.6 * rng.dirichlet(np.full(cells, 0.3)), resolution)
            assert counts.sum() == resolution
            assert counts.min() >= 0


def test_the_quantiser() -> None:
    check_is_nearest(quantise)
    check_ties_go_to_the_lowest_id(quantise)
    check_counts_sum_to_the_resolution(quantise)


@pytest.mark.parametrize("vocab", [50_257, 262_144])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_vocabularies(vocab: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    for scale in (0.0, 1.0, 3.0, 8.0):
        logits = rng.normal(size=vocab) * scale
        for resolution in (1, 100, 4096):
            counts = quantise(np.exp(logits - logits.max()).astype(dtype), resolution)
            assert counts.sum() == resolution
            assert counts.min() >= 0


def test_the_error_bound_holds_and_is_attained() -> None:
    """Total variation <= floor(K/2) ceil(K/2) / (K l) (SQS Eq. 20), with equality at the deep holes."""
    for cells, resolution in SETTINGS:
        bound = (cells // 2) * ((cells + 1) // 2) / (cells * resolution)
        for q in distributions(cells, 300):
            assert np.abs(quantise(q, resolution) / resolution - q).sum() / 2 <= bound + 1e-12
        lifted = cells // 2
        hole = np.full(cells, lifted / cells) / resolution
        hole[0] += (resolution - lifted) / resolution
        error = np.abs(quantise(hole, resolution) / resolution - hole).sum() / 2
        assert error == pytest.approx(bound, abs=1e-12)


def plain(
    q: np.ndarray, resolution: int, *, normalise: bool = True, sign: int = 1, even: bool = False
) -> np.ndarray:
    """QS Eq. 5, the slow and obvious way, with its known misreadings."""
    scaled = resolution * (q / q.sum() if normalise else q)
    counts = (np.rint(scaled) if even else np.floor(scaled + 0.5)).astype(int)
    excess = int(counts.sum()) - resolution
    error = sign * (counts - scaled)
    order = np.argsort(-error if excess > 0 else error, kind="stable")
    counts[order[: abs(excess)]] -= np.sign(excess)
    return counts


def test_the_slow_form_agrees() -> None:
    rng = np.random.default_rng(9)
    for cells in (2, 5, 40, 300):
        for _ in range(200):
            q = rng.dirichlet(np.full(cells, 0.5))
            assert quantise(q, 100).tolist() == plain(q, 100).tolist()


MUTANTS: dict[str, tuple[Quantiser, Callable[[Quantiser], None]]] = {
    "not normalised (SQS Alg. 2 as printed)": (
        lambda q, resolution: plain(q, resolution, normalise=False),
        check_counts_sum_to_the_resolution,
    ),
    "smallest and largest errors swapped": (
        lambda q, resolution: plain(q, resolution, sign=-1),
        lambda function: check_is_nearest(function, 60),
    ),
    "halves rounded to even": (
        lambda q, resolution: plain(q, resolution, even=True),
        check_ties_go_to_the_lowest_id,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name: str) -> None:
    mutant, check = MUTANTS[name]
    with pytest.raises(AssertionError):
        check(mutant)
