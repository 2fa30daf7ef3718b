"""The lottery: the token of a step is the draft of one party, drawn as often as the party counts.

How often each party owns a step exactly, by enumeration of the owner's number; that owners of other steps and the race
of the drafts are independent of it, by counting. So the token follows the mixture; that whole answers are those of the
reference loop, whatever is lost on the way, is in `tests/unit/lab/simulation/test_lottery.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tandem.aggregation import coupling, rules
from tandem.aggregation.coupling import Purpose

Draw = Callable[..., int]
Check = Callable[[np.ndarray, np.ndarray], None]
SHARES = ((0.3, 0.7), (0.1, 0.6, 0.0, 0.3), (0.0, 1.0), (1.0, 0.0), (0.4,))
NUMBERS = [(place + 0.5) / 1000 for place in range(1000)]


def check_numbers(draw: Draw, shares: tuple[float, ...]) -> None:
    """By all numbers of a grid that the shares divide; what the last sum leaves over is the last voter's."""
    counts = [0] * len(shares)
    for number in NUMBERS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rules, "uniform", lambda *args, number=number: number)
            counts[draw(shares, seed=0, step=0)] += 1
    exact = [round(1000 * share) for share in shares]
    exact[-1] += 1000 - sum(exact)
    assert counts == exact


@pytest.mark.parametrize("shares", SHARES)
def test_each_voter_owns_as_many_numbers_as_it_counts(shares: tuple[float, ...]) -> None:
    check_numbers(rules.draw_owner, shares)


def test_mutant_shares_in_the_opposite_order() -> None:
    with pytest.raises(AssertionError):
        check_numbers(lambda shares, **place: rules.draw_owner(shares[::-1], **place), SHARES[0])


def count_owners(draw: Draw) -> np.ndarray:
    """How often each of three owns a step and each the next one."""
    counts = np.zeros((3, 3))
    for seed in range(30_000):
        counts[tuple(draw((0.2, 0.5, 0.3), seed=seed, step=step) for step in range(2))] += 1
    return counts


def test_owners_of_two_steps_are_independent(chi_square: Check) -> None:
    """And a number that is used twice is found."""
    law = np.outer((0.2, 0.5, 0.3), (0.2, 0.5, 0.3))
    chi_square(count_owners(rules.draw_owner), law)
    with pytest.raises(AssertionError, match="chi-square"):
        chi_square(
            count_owners(lambda shares, seed, step: rules.draw_owner(shares, seed=seed, step=step // 2)), law
        )


def number_of_the_race(seed: int, step: int) -> float:
    """Uniform, of token 0."""
    return float(np.exp(-coupling.exponentials(seed, Purpose.COUPLED, step, np.array([0]))[0]))


def by_the_race(shares: tuple[float, ...], *, seed: int, step: int) -> int:
    """A mutant: the owner is drawn by a number of the race itself."""
    return int(np.searchsorted(np.cumsum(shares), number_of_the_race(seed, step), side="right"))


def count_owner_and_race(draw: Draw) -> np.ndarray:
    """Two by two: who owns a step, and whether a number of its race is small."""
    counts = np.zeros((2, 2))
    for seed, step in product(range(3000), range(4)):
        counts[draw((0.5, 0.5), seed=seed, step=step), int(number_of_the_race(seed, step) > 0.5)] += 1
    return counts


def test_the_owner_does_not_tell_of_the_race(chi_square: Check) -> None:
    """Who owns a step is independent of which token wins it."""
    law = np.full((2, 2), 0.25)
    chi_square(count_owner_and_race(rules.draw_owner), law)
    with pytest.raises(AssertionError, match="chi-square"):
        chi_square(count_owner_and_race(by_the_race), law)
