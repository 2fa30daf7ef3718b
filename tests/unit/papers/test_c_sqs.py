"""The threshold of C-SQS: its guarantee on adversarial distributions, and its clip. States that roll back: test_base.

Nothing is drawn from a distribution, so nothing has a false alarm; each known misreading of the paper is a mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest

from tandem.plugins.papers.codecs import CSqs, CSqsSession

VOCAB, NUM_STEPS = 40, 1000
PAPER = CSqs(0.05, 0.1, 0.01, beta_max=0.0)
Sequence = Callable[[], Iterator[np.ndarray]]
POINT = np.eye(VOCAB)[3]
FLAT = np.full(VOCAB, 1 / VOCAB)
Step = Callable[[CSqsSession, np.ndarray], float]
"""The threshold after a distribution."""


def step(session: CSqsSession, dense: np.ndarray) -> float:
    ids, dropped = session.support(dense)
    assert dropped == pytest.approx(1.0 - dense[ids].sum() / dense.sum(), abs=1e-12)
    return session.encode(dense)[1].beta


def alternating() -> Iterator[np.ndarray]:
    while True:
        yield POINT
        yield FLAT


def random() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(6)
    while True:
        yield rng.dirichlet(np.full(VOCAB, rng.choice([0.05, 0.3, 3.0])))


def adverse() -> Iterator[np.ndarray]:
    """Long runs: certain tokens wind the threshold up, then flat ones are cut to one token each."""
    while True:
        for dense in (POINT, FLAT, random_flat()):
            for _ in range(150):
                yield dense


def wide() -> Iterator[np.ndarray]:
    """So flat that a threshold just above zero, alpha * eta, drops everything but one token."""
    while True:
        yield np.full(400, 1 / 400)


def random_flat() -> np.ndarray:
    return np.random.default_rng(1).dirichlet(np.full(VOCAB, 5.0))


SEQUENCES = {"alternating": alternating, "random": random, "adverse": adverse, "wide": wide}
by_sequence = pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES.keys())


def run(codec: CSqs, sequence: Sequence, step: Step) -> tuple[float, float, float]:
    """(mean mass truly dropped, first threshold, last threshold) after NUM_STEPS."""
    beta, total = codec.beta_1, 0.0
    for dense in islice(sequence(), NUM_STEPS):
        session = CSqsSession(codec, beta)
        total += session.support(dense)[1]
        beta = step(session, dense)
    return total / NUM_STEPS, codec.beta_1, beta


def check_identity(step: Step, sequence: Sequence) -> None:
    mean, first, last = run(PAPER, sequence, step)
    assert mean == pytest.approx(PAPER.alpha + (first - last) / (PAPER.eta * NUM_STEPS), abs=1e-9)


def check_bound(step: Step, sequence: Sequence, codec: CSqs = PAPER) -> None:
    mean, first, _ = run(codec, sequence, step)
    slack = codec.eta * (1 - codec.alpha)
    assert mean <= codec.alpha + (first + slack) / (codec.eta * NUM_STEPS) + 1e-12


@by_sequence
def test_the_mean_of_the_dropped_mass_follows_from_the_thresholds(sequence: Sequence) -> None:
    check_identity(step, sequence)


@by_sequence
@pytest.mark.parametrize("beta_max", [0.0, 0.05])
def test_the_bound_holds_with_and_without_clip(sequence: Sequence, beta_max: float) -> None:
    check_bound(step, sequence, CSqs(0.05, 0.1, 0.01, beta_max))


def update(session: CSqsSession, dropped: float) -> float:
    return session.beta - session.codec.eta * (dropped - session.codec.alpha)


def dropped(session: CSqsSession, dense: np.ndarray) -> float:
    return session.support(dense)[1]


def lacking(session: CSqsSession, dense: np.ndarray) -> float:
    """The mass that the decoded distribution lacks, which counts what rounding to zero dropped too."""
    payload, _ = session.encode(dense)
    return 1.0 - float(dense[session.codec.decode(payload, dense.size).ids].sum())


def dropped_or_all(session: CSqsSession, dense: np.ndarray) -> float:
    """An empty support counts as one."""
    return 1.0 if session.beta > dense.max() else dropped(session, dense)


@pytest.mark.parametrize(
    ("mutant", "check", "sequence"),
    [
        (
            lambda session, dense: 2 * session.beta - update(session, dropped(session, dense)),
            check_bound,
            wide,
        ),
        (lambda session, dense: update(session, lacking(session, dense)), check_identity, random),
        (lambda session, dense: update(session, dropped_or_all(session, dense)), check_identity, adverse),
        (lambda session, dense: max(0.0, update(session, dropped(session, dense))), check_bound, wide),
    ],
    ids=["sign of the update", "drop of the quantised", "an empty support is one", "clipped at zero"],
)
def test_mutants(mutant: Step, check: Callable[[Step, Sequence], None], sequence: Sequence) -> None:
    with pytest.raises(AssertionError):
        check(mutant, sequence)


# ---- the clip ------------------------------------------------------------------------------------------------


def beta_after_certain_tokens(beta_max: float) -> float:
    session = CSqs(0.01, 0.01, 0.01, beta_max).open()
    for _ in range(10_000):
        session = CSqsSession(session.codec, session.next_beta(session.support(POINT)[1]))
    return session.beta


def test_certain_tokens_do_not_wind_the_threshold_up() -> None:
    """In the paper's form a threshold is left that no token reaches."""
    assert beta_after_certain_tokens(0.05) == 0.05
    assert beta_after_certain_tokens(0.0) > 1.0


def test_a_support_beyond_the_cap_becomes_the_vocabulary() -> None:
    """Which drops nothing, so the guarantee stays, and is cheaper to send."""
    dense = np.append(np.full(5000, 1.9e-4), np.full(5000, 1e-5))
    ids, dropped = CSqsSession(CSqs(), 1e-4).support(dense)
    assert (ids.size, dropped) == (10_000, 0.0)
    assert len(CSqsSession(CSqs(index="paper"), 1e-4).encode(dense)[0]) < 150
