"""Sets and counts inside one whole number, at the size of the combinatorial bound; the nearest lattice point."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.codecs import sets

VOCAB, KEPT, RESOLUTION = 12, 4, 6
TABLE = {  # SQS and QS, exact: specs of both papers count these
    50_257: ({1: 16, 2: 38, 4: 76, 8: 145, 16: 268, 32: 483, 64: 857, 128: 1504, 256: 2615}, {100: 1038}),
    151_936: ({1: 18, 2: 41, 4: 83, 8: 158, 16: 294, 32: 534, 64: 959, 128: 1709, 256: 3024}, {100: 1197}),
    262_144: ({1: 18, 2: 42, 4: 86, 8: 164, 16: 306, 32: 559, 64: 1009, 128: 1809, 256: 3225}, {100: 1276}),
}


def compositions(total: int, cells: int) -> list[list[int]]:
    """All counts >= 0 of that total."""
    bars = itertools.combinations(range(total + cells - 1), cells - 1)
    ends = ((-1, *each, total + cells - 1) for each in bars)
    return [[b - a - 1 for a, b in itertools.pairwise(each)] for each in ends]


def test_every_set_with_every_count_comes_back_and_no_two_share_a_number() -> None:
    numbers = set()
    for ids in itertools.combinations(range(VOCAB), KEPT):
        for counts in compositions(RESOLUTION, KEPT):
            number = sets.push_set(sets.push_counts(0, counts, RESOLUTION), ids, VOCAB)
            members, rest = sets.pop_set(number, KEPT, VOCAB)
            assert (members, sets.pop_counts(rest, KEPT, RESOLUTION)) == (list(ids), (counts, 0))
            assert number not in numbers
            numbers.add(number)
    assert len(numbers) == comb(12, 4) * comb(9, 3)


@given(st.integers(0, 1 << 200), st.integers(1, 60), st.integers(0, 60))
def test_every_number_is_a_set_and_a_rest(number: int, universe: int, size: int) -> None:
    """So no bytes can name a token twice: each number decodes to distinct ids, and these give it back."""
    size = min(size, universe)
    members, rest = sets.pop_set(number, size, universe)
    assert members == sorted(set(members))
    assert len(members) == size
    assert all(0 <= member < universe for member in members)
    assert sets.push_set(rest, members, universe) == number


@pytest.mark.parametrize("vocab", TABLE)
def test_bits_are_those_of_the_tables(vocab: int) -> None:
    by_kept, dense = TABLE[vocab]
    assert {k: sets.support_bits(vocab, k) + sets.counts_bits(k, 100) for k in by_kept} == by_kept
    assert {resolution: sets.counts_bits(vocab, resolution) for resolution in dense} == dense


def random_point(rng: np.random.Generator, vocab: int, kept: int) -> tuple[list[int], list[int]]:
    ids = np.sort(rng.choice(vocab, kept, replace=False)).tolist()
    return ids, rng.multinomial(100, rng.dirichlet(np.ones(kept))).tolist()


@pytest.mark.parametrize("vocab", [50_257, 262_144])
@pytest.mark.parametrize("kept", [1, 2, 16, 64, 256])
def test_the_size_is_that_of_the_joint_index(vocab: int, kept: int) -> None:
    """At most two bytes more for one distribution, one for a block of eight; on average 0 to 2 bits."""
    rng = np.random.default_rng(kept)
    joint = (comb(vocab, kept) * comb(100 + kept - 1, 100) - 1).bit_length()
    for _ in range(20):
        block = 0
        for _ in range(8):
            ids, counts = random_point(rng, vocab, kept)
            number = sets.push_set(sets.push_counts(0, counts, 100), ids, vocab)
            assert len(sets.to_bytes(number)) <= (joint + 7) // 8 + 1
            block = sets.push_set(sets.push_counts(block, counts, 100), ids, vocab)
        assert 8 * len(sets.to_bytes(block)) <= 8 * joint + 8 + 7


# ---- the nearest lattice point against all of them; misreadings of the papers are mutants --------------------


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
    check_is_nearest(sets.quantise)
    check_ties_go_to_the_lowest_id(sets.quantise)
    check_counts_sum_to_the_resolution(sets.quantise)


@pytest.mark.parametrize("vocab", [50_257, 262_144])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_vocabularies(vocab: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    for scale in (0.0, 1.0, 3.0, 8.0):
        logits = rng.normal(size=vocab) * scale
        for resolution in (1, 100, 4096):
            counts = sets.quantise(np.exp(logits - logits.max()).astype(dtype), resolution)
            assert counts.sum() == resolution
            assert counts.min() >= 0


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
            assert sets.quantise(q, 100).tolist() == plain(q, 100).tolist()


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
