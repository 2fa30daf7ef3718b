"""The wrong order accepts more and commits something else; the right one does not."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.papers.lattice import Lattice
from tandem_lab.quality.sample_then_quantise import verify


def random_pairs(count: int, vocab: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    return [(rng.dirichlet(np.full(vocab, 0.2)), rng.dirichlet(np.full(vocab, 0.2))) for _ in range(count)]


def test_by_hand() -> None:
    """q = (.6 .4) is rounded to (1 0): the first stands with probability .5, the second always."""
    q, rounded, p = np.array([0.6, 0.4]), np.array([1.0, 0.0]), np.array([0.5, 0.5])
    found = verify(q, rounded, p)
    assert found.acceptance == pytest.approx(0.6 * 0.5 + 0.4)
    assert found.distance == pytest.approx(0.2), "(.3, .7) instead of (.5, .5)"


def test_one_distribution_for_both_commits_the_target() -> None:
    for q, p in random_pairs(200, 30):
        found = verify(q, q, p)
        assert found.distance < 1e-12
        assert found.acceptance == pytest.approx(np.minimum(q, p).sum())


def test_quantised_first_is_exact_and_afterwards_is_not() -> None:
    codec = Lattice(12)
    right, wrong = [], []
    for q, p in random_pairs(200, 30):
        rounded = codec.decode(codec.open().encode(q)[0], q.size).dense(q.size)
        right.append(verify(rounded, rounded, p))
        wrong.append(verify(q, rounded, p))
    assert max(found.distance for found in right) < 1e-12
    assert np.mean([found.distance for found in wrong]) > 0.02
    assert np.mean([found.acceptance for found in wrong]) > np.mean([found.acceptance for found in right])
