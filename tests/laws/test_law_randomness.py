"""Independence of the counter-based numbers across steps, tokens, seeds and purposes.

Each check compares pairs of numbers on a 16 x 16 grid by chi-square (255 degrees of freedom, up to 131,072
pairs) at 1e-9; 16 checks, so a good hash fails with probability about 2e-8. Power: a correlation of 0.05, or
one pair in fifty equal, is seen with probability above 0.99; the mutants repeat numbers outright.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from tandem.aggregation.coupling import Purpose, uniforms

NUM_STEPS, NUM_IDS, CELLS = 128, 1024, 16
IDS = np.arange(NUM_IDS)
Uniforms = Callable[[int, Purpose, int, np.ndarray], np.ndarray]
Check = Callable[..., None]


def table(fn: Uniforms, *, seed: int = 1, purpose: Purpose = Purpose.COUPLED, first: int = 0) -> np.ndarray:
    """Numbers of successive steps, [NUM_STEPS, NUM_IDS]."""
    return np.stack([fn(seed, purpose, first + step, IDS) for step in range(NUM_STEPS)])


def grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How often each pair of sixteenths occurs, [CELLS * CELLS]."""
    cells = (x.ravel() * CELLS).astype(int) * CELLS + (y.ravel() * CELLS).astype(int)
    return np.bincount(cells, minlength=CELLS * CELLS)


def seeds(fn: Uniforms, first: int, stride: int) -> np.ndarray:
    """Numbers of successive seeds at one step, [NUM_STEPS, NUM_IDS]."""
    return np.stack([fn(first + i * stride, Purpose.COUPLED, 0, IDS) for i in range(NUM_STEPS)])


Pair = Callable[[Uniforms], tuple[np.ndarray, np.ndarray]]


def of_purposes(one: Purpose, other: Purpose, later: int = 0) -> Pair:
    """later: steps from one to the other."""
    return lambda fn: (table(fn, purpose=one), table(fn, purpose=other, first=later))


PAIRS: dict[str, Pair] = {
    "next step": lambda fn: (table(fn), table(fn, first=1)),
    "next token": lambda fn: (table(fn)[:, :-1], table(fn)[:, 1:]),
    "token 256 on": lambda fn: (table(fn)[:, :-256], table(fn)[:, 256:]),
    "next seed": lambda fn: (seeds(fn, 0, 1), seeds(fn, 1, 1)),
    "high bits of the seed": lambda fn: (seeds(fn, 0, 1), seeds(fn, 1 << 63, 1)),
    "next seed, previous step": lambda fn: (table(fn, first=1), table(fn, seed=2)),
    "next step, previous token": lambda fn: (table(fn)[:, 1:], table(fn, first=1)[:, :-1]),
    "device draft and cloud draft": of_purposes(Purpose.DRAFT_DEVICE, Purpose.DRAFT_CLOUD),
    "draft and decision": of_purposes(Purpose.DRAFT_CLOUD, Purpose.DECISION),
    "draft and acceptance": of_purposes(Purpose.DRAFT_DEVICE, Purpose.ACCEPTANCE),
    "acceptance and correction": of_purposes(Purpose.ACCEPTANCE, Purpose.CORRECTION),
    "correction and next draft": of_purposes(Purpose.CORRECTION, Purpose.DRAFT_DEVICE, later=1),
    "noise and decision": of_purposes(Purpose.COUPLED, Purpose.DECISION),
    "low bits and high bits": lambda fn: (table(fn), (table(fn) * 2.0**40) % 1.0),
    "ids beyond 16 bits": lambda fn: (
        table(fn),
        table(lambda seed, purpose, step, ids: fn(seed, purpose, step, ids + 65_536)),
    ),
    "steps beyond 16 bits": lambda fn: (table(fn), table(fn, first=65_536)),
}


def check(fn: Uniforms, name: str, chi_square: Check) -> None:
    chi_square(grid(*PAIRS[name](fn)), np.full(CELLS * CELLS, 1 / CELLS**2))


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_independent_and_uniform(name: str, chi_square: Check) -> None:
    check(uniforms, name, chi_square)


class At(NamedTuple):
    """What a number depends on."""

    seed: int
    purpose: Purpose
    step: int
    ids: np.ndarray


MUTANTS: dict[str, tuple[Callable[[At], At], str]] = {
    "reseeded at every step (section 12)": (lambda at: at._replace(step=0), "next step"),
    "one number for all tokens": (lambda at: at._replace(ids=0 * at.ids), "next token"),
    "tokens modulo 256": (lambda at: at._replace(ids=at.ids % 256), "token 256 on"),
    "seed ignored": (lambda at: at._replace(seed=0), "next seed"),
    "seed in 32 bits": (lambda at: at._replace(seed=at.seed % 2**32), "high bits of the seed"),
    "seed plus step": (lambda at: at._replace(seed=at.seed + at.step, step=0), "next seed, previous step"),
    "step plus token": (lambda at: at._replace(step=0, ids=at.ids + at.step), "next step, previous token"),
    "one stream for both drafts": (
        lambda at: at._replace(purpose=Purpose.DECISION),
        "device draft and cloud draft",
    ),
    "draft numbers decide": (lambda at: at._replace(purpose=Purpose.DRAFT_CLOUD), "draft and decision"),
    "ids in 16 bits (section 12)": (lambda at: at._replace(ids=at.ids & 0xFFFF), "ids beyond 16 bits"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name: str, chi_square: Check) -> None:
    bend, caught_by = MUTANTS[name]
    with pytest.raises(AssertionError):
        check(lambda *at: uniforms(*bend(At(*at))), caught_by, chi_square)
