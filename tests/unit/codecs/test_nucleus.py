"""The nucleus against a slow oracle that sorts everything, and a proof that the real one does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.codecs import top_p as module
from tandem.codecs.top_p import SORT_LIMIT, nucleus


def oracle(dense: np.ndarray, top_p: float) -> list[int]:
    order = sorted(range(dense.size), key=lambda i: (-dense[i], i))
    total, mass = float(dense.astype(np.float64).sum()), 0.0
    for n, i in enumerate(order):
        mass += float(dense[i])
        if mass >= top_p * total:
            return sorted(order[: n + 1])
    return sorted(i for i in order if dense[i] > 0)


def distribution(kind: str, vocab: int, seed: int) -> np.ndarray:
    scale = {"peaked": 8.0, "mid": 3.0, "flat": 1.0, "nearly_uniform": 1e-7}[kind]
    logits = np.random.default_rng(seed).normal(size=vocab) * scale
    dense = np.exp(logits - logits.max())
    return np.asarray(dense / dense.sum())


@given(
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=40).filter(any),
    st.sampled_from([0.1, 0.5, 0.8, 1.0]),
)
def test_equals_the_oracle_on_exact_numbers(weights: list[int], top_p: float) -> None:
    dense = np.array(weights) * 2.0**-20  # sums are exact: no doubt about the crossing token
    assert nucleus(dense, top_p).tolist() == oracle(dense, top_p)


def test_ties_at_the_crossing_go_to_the_lowest_ids_beyond_the_sort_limit() -> None:
    dense = np.ones(20_000)
    dense[10_000:] = 2.0
    dense[15_000:] = 4.0
    ids = nucleus(dense, 24_000 / 40_000)
    assert ids.tolist() == [*range(10_000, 12_000), *range(15_000, 20_000)]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.01, 0.99))
def test_is_smallest_and_reaches_p(seed: int, top_p: float) -> None:
    dense = distribution("flat", 6_000, seed)
    ids = nucleus(dense, top_p)
    mass = dense[ids].sum()
    assert mass >= top_p * dense.sum() * (1 - 1e-12)
    assert mass - dense[ids].min() < top_p * dense.sum() * (1 + 1e-12)
    assert dense[ids].min() >= np.delete(dense, ids).max()


@pytest.mark.parametrize("kind", ["peaked", "mid", "flat", "nearly_uniform"])
def test_no_more_than_the_limit_is_ever_sorted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 12: packing sorts the whole vocabulary on the decoding thread."""
    real, sizes = np.argsort, []

    def spy(array: np.ndarray, **options: str) -> np.ndarray:
        sizes.append(array.size)
        return real(array, **options)

    monkeypatch.setattr(module.np, "argsort", spy)
    nucleus(distribution(kind, 152_000, 5), 0.8)
    assert max(sizes, default=0) <= SORT_LIMIT
