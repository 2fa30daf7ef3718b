"""What truncating a vote to its top K costs: the bounds of SpecFed, as they hold, on any distributions.

Exact sums over generated distributions with ties, zeros, points and flat ones; nothing has a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.aggregation.distributions import Distribution
from tandem.plugins.papers.codecs import VALUE_SUM, TopK

VOCAB = 14
STEP = 1 / VALUE_SUM
kinds = st.lists(st.integers(0, 60), min_size=VOCAB, max_size=VOCAB).filter(any)
votes = st.one_of(
    kinds, st.integers(0, VOCAB - 1).map(lambda i: [int(i == j) for j in range(VOCAB)]), st.just([1] * VOCAB)
)
by_vote = given(votes.map(lambda values: np.array(values) / sum(values)), st.integers(1, VOCAB))


def decoded(dense: np.ndarray, k: int, rest: str) -> np.ndarray:
    codec = TopK(k, rest)  # type: ignore[arg-type]
    return codec.decode(codec.encode(dense), dense.size).dense(dense.size)


def kept(dense: np.ndarray, k: int) -> np.ndarray:
    """Ids of the k most probable, of equals the lowest."""
    return np.sort(np.argsort(-dense, kind="stable")[:k])


def renormalised(dense: np.ndarray, k: int) -> np.ndarray:
    """SpecFed Eq. 5."""
    out, ids = np.zeros(dense.size), kept(dense, k)
    out[ids] = dense[ids] / dense[ids].sum()
    return out


def residual(dense: np.ndarray, k: int, spread: int = 0) -> np.ndarray:
    """SpecFed Eq. 6. spread: over how many tokens too many the rest is spread."""
    ids = kept(dense, k)
    if k == dense.size:
        return dense.copy()
    out = np.full(dense.size, (1.0 - dense[ids].sum()) / (dense.size - k + spread))
    out[ids] = dense[ids]
    return out


def check_is(form: Callable[[np.ndarray, int], np.ndarray], rest: str, dense: np.ndarray, k: int) -> None:
    """The decoded distribution is that of the equation, up to the lattice."""
    wanted = form(dense, k)
    assert np.abs(decoded(dense, k, rest) - wanted).sum() / 2 <= (k + 1) / 4 * STEP + 1e-12


@settings(max_examples=400)
@by_vote
def test_the_codec_is_equations_5_and_6(dense: np.ndarray, k: int) -> None:
    check_is(renormalised, "renormalise", dense, k)
    check_is(residual, "residual", dense, k)


@settings(max_examples=400)
@by_vote
def test_lemma_1_and_its_sharper_form(dense: np.ndarray, k: int) -> None:
    """Renormalised: exactly 2 eps. Residual: at most 2 eps (1 - u / c)."""
    ids = kept(dense, k)
    dropped = max(0.0, 1.0 - dense[ids].sum())
    assert np.abs(renormalised(dense, k) - dense).sum() == pytest.approx(2 * dropped, abs=1e-12)
    error = np.abs(residual(dense, k) - dense).sum()
    least, share = dense[ids].min(), dropped / max(1, VOCAB - k)
    bound = 2 * dropped * (1 - share / least) if least else 0.0
    assert error <= bound + 1e-12
    quantised = np.abs(decoded(dense, k, "residual") - dense).sum()
    assert quantised <= bound + (k + 1) / 2 * STEP + 1e-12


def acceptance(draft: np.ndarray, target: np.ndarray) -> float:
    """SpecFed Eq. 2."""
    return float(np.minimum(draft, target).sum())


@settings(max_examples=300)
@given(
    st.lists(kinds, min_size=3, max_size=6),
    st.integers(1, VOCAB),
    st.sampled_from(["renormalise", "residual"]),
)
def test_theorems_2_and_3(values: list[list[int]], k: int, rest: str) -> None:
    """Error of the mixture <= 2 sum w eps; change of the acceptance <= half of that (Eq. 19 prints all of it)."""
    draft, *dense = (np.array(each) / sum(each) for each in values)
    shares = np.arange(1, len(dense) + 1) / sum(range(1, len(dense) + 1))
    mixture = sum(share * each for share, each in zip(shares, dense, strict=True))
    truncated = sum(share * decoded(each, k, rest) for share, each in zip(shares, dense, strict=True))
    dropped = sum(share * (1 - each[kept(each, k)].sum()) for share, each in zip(shares, dense, strict=True))
    error = float(np.abs(truncated - mixture).sum())
    assert error <= 2 * dropped + (k + 1) / 2 * STEP + 1e-12
    assert abs(acceptance(draft, truncated) - acceptance(draft, mixture)) <= error / 2 + 1e-12


def test_a_residual_mixture_may_be_worse_than_a_renormalised_one() -> None:
    """SpecFed calls the residual consistently better. It is for one vote; errors of two can cancel."""
    votes = [np.array([0.6, 0.4, 0.0, 0.0]), np.array([0.4, 0.6, 0.0, 0.0])]

    def error(rest: str) -> float:
        return float(np.abs(sum(decoded(vote, 1, rest) - vote for vote in votes) / 2).sum())

    assert error("renormalise") == pytest.approx(0.0, abs=1e-12)
    assert error("residual") == pytest.approx(0.8 * 2 / 3, abs=1e-4)


# ---- mutants -------------------------------------------------------------------------------------------------

DENSE = np.array([0.4, 0.2, 0.2, 0.1, 0.05, 0.05])


def test_mutant_the_rest_spread_over_the_whole_vocabulary() -> None:
    """eps / V instead of eps / (V - K): it does not sum to one."""
    with pytest.raises(ValueError, match="of sum 1"):
        Distribution(np.arange(6), residual(DENSE, 3, spread=3))
    with pytest.raises(AssertionError):
        check_is(lambda dense, k: residual(dense, k, spread=k), "residual", DENSE, 3)


def test_mutant_renormalised_by_another_voter_s_mass() -> None:
    other = np.array([0.9, 0.1, 0.0, 0.0, 0.0, 0.0])
    with pytest.raises(AssertionError):
        check_is(lambda dense, k: renormalised(dense, k) * other[:k].sum() / 0.8, "renormalise", DENSE, 3)


def test_mutant_tokens_that_tie_with_the_last_are_dropped() -> None:
    def strictly_above(dense: np.ndarray, k: int) -> np.ndarray:
        out = np.where(dense > np.sort(dense)[-k - 1], dense, 0.0)
        return np.asarray(out / out.sum())

    check_is(renormalised, "renormalise", DENSE, 2)
    with pytest.raises(AssertionError):
        check_is(strictly_above, "renormalise", DENSE, 2)
