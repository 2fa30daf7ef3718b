"""The threshold of C-SQS: its guarantee on adversarial distributions, its clip, and that it rolls back.

Nothing is drawn from a distribution, so nothing has a false alarm; each known misreading of the paper is a mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import pytest

from tandem.codecs import CodecStates
from tandem.plugins.papers.sqs import CSqs, CSqsSession
from tandem.protocol.log import Prefix

VOCAB, NUM_STEPS = 40, 2000
PAPER = CSqs(0.05, 0.1, 0.01, beta_max=0.0)
POINT = np.eye(VOCAB)[3]
FLAT = np.full(VOCAB, 1 / VOCAB)
Encode = Callable[[CSqsSession, np.ndarray], tuple[float, float]]


def step(session: CSqsSession, dense: np.ndarray) -> tuple[float, float]:
    """(mass dropped, next threshold), as the codec has them."""
    ids, dropped = session.support(dense)
    assert dropped == pytest.approx(1.0 - dense[ids].sum() / dense.sum(), abs=1e-12)
    after = session.encode(dense)[1]
    return dropped, after.beta


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


def run(
    codec: CSqs, sequence: Callable[[], Iterator[np.ndarray]], encode: Encode
) -> tuple[float, float, float]:
    """(mean mass truly dropped, first threshold, last threshold) after NUM_STEPS."""
    beta, total = codec.beta_1, 0.0
    for dense in islice(sequence(), NUM_STEPS):
        session = CSqsSession(codec, beta)
        total += session.support(dense)[1]
        _, beta = encode(session, dense)
    return total / NUM_STEPS, codec.beta_1, beta


def check_identity(encode: Encode, sequence: Callable[[], Iterator[np.ndarray]]) -> None:
    mean, first, last = run(PAPER, sequence, encode)
    assert mean == pytest.approx(PAPER.alpha + (first - last) / (PAPER.eta * NUM_STEPS), abs=1e-9)


def check_bound(encode: Encode, sequence: Callable[[], Iterator[np.ndarray]], codec: CSqs = PAPER) -> None:
    mean, first, _ = run(codec, sequence, encode)
    slack = codec.eta * (1 - codec.alpha)
    assert mean <= codec.alpha + (first + slack) / (codec.eta * NUM_STEPS) + 1e-12


@by_sequence
def test_the_mean_of_the_dropped_mass_follows_from_the_thresholds(
    sequence: Callable[[], Iterator[np.ndarray]],
) -> None:
    check_identity(step, sequence)


@by_sequence
@pytest.mark.parametrize("beta_max", [0.0, 0.05])
def test_the_bound_holds_with_and_without_clip(
    sequence: Callable[[], Iterator[np.ndarray]], beta_max: float
) -> None:
    check_bound(step, sequence, CSqs(0.05, 0.1, 0.01, beta_max))


def update(session: CSqsSession, dropped: float) -> float:
    return session.beta - session.codec.eta * (dropped - session.codec.alpha)


def wrong_sign(session: CSqsSession, dense: np.ndarray) -> tuple[float, float]:
    dropped = session.support(dense)[1]
    return dropped, session.beta + session.codec.eta * (dropped - session.codec.alpha)


def drop_of_the_quantised(session: CSqsSession, dense: np.ndarray) -> tuple[float, float]:
    """The mass that the decoded distribution lacks, which counts what rounding to zero dropped too."""
    payload, _ = session.encode(dense)
    kept = session.codec.decode(payload, dense.size).ids
    dropped = 1.0 - float(dense[kept].sum())
    return dropped, update(session, dropped)


def empty_support_counts_one(session: CSqsSession, dense: np.ndarray) -> tuple[float, float]:
    dropped = 1.0 if session.beta > dense.max() else session.support(dense)[1]
    return dropped, update(session, dropped)


def clipped_at_zero(session: CSqsSession, dense: np.ndarray) -> tuple[float, float]:
    dropped = session.support(dense)[1]
    return dropped, max(0.0, update(session, dropped))


MUTANTS: dict[str, tuple[Encode, Callable[[Encode], None]]] = {
    "sign of the update": (wrong_sign, lambda encode: check_bound(encode, wide)),
    "drop of the quantised distribution": (
        drop_of_the_quantised,
        lambda encode: check_identity(encode, random),
    ),
    "an empty support counts as one": (
        empty_support_counts_one,
        lambda encode: check_identity(encode, adverse),
    ),
    "clipped at zero from below": (clipped_at_zero, lambda encode: check_bound(encode, wide)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name: str) -> None:
    mutant, check = MUTANTS[name]
    with pytest.raises(AssertionError):
        check(mutant)


# ---- the clip ------------------------------------------------------------------------------------------------


def logits(rng: np.random.Generator, temperature: float) -> np.ndarray:
    """A distribution over 3,000 tokens whose probabilities fall by rank, flatter at high temperature."""
    rank = np.log(np.arange(3000) + 1.5)
    spread = 0.28 + 0.5 * np.minimum(1, np.log(np.arange(3000) + 1) / 6)
    scores = (-np.exp(rng.normal(0.62, 0.32)) * rank + spread * rng.normal(size=3000)) / temperature
    dense = np.exp(scores - scores.max())
    return np.asarray(dense / dense.sum())


def mean_drop_after_certain_tokens(beta_max: float) -> float:
    """Of the next 100 distributions, after 10,000 that leave no doubt about the token."""
    rng, session = np.random.default_rng(3), CSqs(0.01, 0.01, 0.01, beta_max).open()
    for _ in range(10_000):
        session = CSqsSession(session.codec, session.next_beta(session.support(POINT)[1]))
    drops = []
    for _ in range(100):
        drops.append(session.support(logits(rng, 1.0))[1])
        session = CSqsSession(session.codec, session.next_beta(drops[-1]))
    return float(np.mean(drops))


def test_certain_tokens_do_not_wind_the_threshold_up() -> None:
    """In the paper's form the next 100 lose more than a third of their mass."""
    assert mean_drop_after_certain_tokens(0.05) <= 0.1
    assert mean_drop_after_certain_tokens(0.0) > 1 / 3


# ---- rollback ------------------------------------------------------------------------------------------------

ADAPTIVE = CSqs(0.05, 0.3, 0.05, 0.4, resolution=20)


def dense_after(tokens: Sequence[int]) -> np.ndarray:
    """What a model would compute after a prefix."""
    return np.random.default_rng([*tokens, 7]).dirichlet(np.full(12, 0.4))


def synchronous(tokens: Sequence[int]) -> float:
    """The threshold after every beginning of a committed answer was encoded once."""
    session = ADAPTIVE.open()
    for length in range(len(tokens)):
        session = session.encode(dense_after(tokens[:length]))[1]
    return session.beta


class NoCheckpoint:
    """A single threshold that every draft moves, rejected or not."""

    def __init__(self) -> None:
        self.session = ADAPTIVE.open()

    def draft(self, committed: list[int], drafts: list[int]) -> None:
        tokens = list(committed)
        for token in drafts:
            self.session = self.session.encode(dense_after(tokens))[1]
            tokens.append(token)

    def verdict(self, num_accepted: int) -> None:
        """Nothing is taken back."""

    @property
    def beta(self) -> float:
        return self.session.beta


class AcceptedOnly(NoCheckpoint):
    """Algorithm 1, line 12, as printed: the threshold after the last accepted draft; a rejected step never counts."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = [self.session]

    def draft(self, committed: list[int], drafts: list[int]) -> None:
        self.stack, tokens = [self.session], list(committed)
        for token in drafts:
            self.stack.append(self.stack[-1].encode(dense_after(tokens))[1])
            tokens.append(token)

    def verdict(self, num_accepted: int) -> None:
        self.session = self.stack[num_accepted]


class Tandem(NoCheckpoint):
    """States by prefix, as in `CodecStates`."""

    def __init__(self) -> None:
        super().__init__()
        self.states = CodecStates(ADAPTIVE)

    def draft(self, committed: list[int], drafts: list[int]) -> None:
        prefix = Prefix(1, committed)
        for token in drafts:
            self.states.encode(dense_after(prefix.tokens), prefix.digests)
            prefix.append(token)

    def beta_before(self, tokens: list[int]) -> float:
        session = self.states.before(Prefix(1, tokens).digests)
        assert isinstance(session, CSqsSession)
        return session.beta


def answer(party: NoCheckpoint, seed: int) -> list[int]:
    """Rounds of drafts, of which some are accepted; the step of the correction or bonus is encoded too."""
    rng = np.random.default_rng(seed)
    committed: list[int] = []
    while len(committed) < 12:
        drafts = rng.integers(0, 3, int(rng.integers(1, 6))).tolist()
        num_accepted = int(rng.integers(0, len(drafts) + 1))
        party.draft(committed, [*drafts, 0])  # the device passes the bonus position as well
        party.verdict(num_accepted)
        committed += [*drafts[:num_accepted], int(rng.integers(3, 6))]
    return committed


def check_rollbacks(make: Callable[[], NoCheckpoint], num_runs: int) -> None:
    """The threshold after any rollbacks is that of the run without drafts, to the bit."""
    for seed in range(num_runs):
        party = make()
        committed = answer(party, seed)
        found = party.beta_before(committed) if isinstance(party, Tandem) else party.beta
        assert found == synchronous(committed)


def test_the_threshold_rolls_back() -> None:
    check_rollbacks(Tandem, 300)


@pytest.mark.parametrize("mutant", [NoCheckpoint, AcceptedOnly])
def test_mutants_that_do_not_roll_back(mutant: Callable[[], NoCheckpoint]) -> None:
    with pytest.raises(AssertionError):
        check_rollbacks(mutant, 20)


def test_a_support_beyond_the_cap_becomes_the_vocabulary() -> None:
    """Which drops nothing, so the guarantee stays, and is cheaper to send."""
    dense = np.append(np.full(5000, 1.9e-4), np.full(5000, 1e-5))
    ids, dropped = CSqsSession(CSqs(), 1e-4).support(dense)
    assert (ids.size, dropped) == (10_000, 0.0)
    assert len(CSqsSession(CSqs(index="paper"), 1e-4).encode(dense)[0]) < 150
