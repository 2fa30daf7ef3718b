"""The rejection rule commits exactly the target distribution, through codec bytes, whatever was quantised.

Enumerated: the rule reads scripted uniform numbers, all probabilities are multiples of 1/6, so its outcome changes only
at multiples of 1/60 and the distribution of the committed tokens is a finite sum; nothing has a false alarm there. One
chi-square over 20,000 committed tokens of a Markov chain at 1e-9 takes the hashed numbers as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tandem.aggregation import rules as proposals
from tandem.aggregation.coupling import Purpose, exponentials, uniforms
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import RejectionProposals, acceptance, residual
from tandem.errors import ProtocolError
from tandem.plugins.papers.codecs import Lattice
from tests.distributions import from_dense

VOCAB, RESOLUTION, GRID = 3, 6, 60
CODEC = Lattice(RESOLUTION)
MIDDLES = (np.arange(GRID) + 0.5) / GRID
Chain = tuple[
    np.ndarray, np.ndarray
]  # distribution of a step given the token before it, [VOCAB, VOCAB]: q and p


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of one proposal."""

    num_accepted: int  # proposed tokens that stand, from the first on
    token: int  # the correction behind them, or the bonus if all stand

    def tokens(self, proposed: Sequence[int]) -> tuple[int, ...]:
        """What is committed, num_accepted + 1 tokens."""
        return (*proposed[: self.num_accepted], self.token)


class RejectionVerifier(RejectionProposals):
    """The rule, and what a voter does with a proposal as a whole, token by token."""

    def verify(
        self,
        tokens: Sequence[int],
        targets: Sequence[Distribution],
        drafts: Sequence[Distribution],
        *,
        seed: int,
        step: int,
    ) -> Verified:
        """How many of the tokens stand, and which one follows.

        tokens: [k]. targets: p at each one's place and behind the last, [k + 1]. drafts: [k].
        """
        for position, target in enumerate(targets):
            is_bonus = position == len(tokens)
            proposed, draft = (None, None) if is_bonus else (tokens[position], drafts[position])
            token = self.choose(target, proposed, draft, seed=seed, step=step + position)
            if token != proposed:
                return Verified(position, token)
        raise AssertionError("a target behind the last token is missing")


def on_the_grid(rng: np.random.Generator) -> np.ndarray:
    return np.asarray(rng.multinomial(RESOLUTION, rng.dirichlet(np.ones(VOCAB))) / RESOLUTION)


def chains(count: int) -> list[Chain]:
    """Small models: q as the drafter's model has it, p on the grid."""
    rng = np.random.default_rng(17)
    return [
        (
            np.stack([rng.dirichlet(np.full(VOCAB, 0.8)) for _ in range(VOCAB)]),
            np.stack([on_the_grid(rng) for _ in range(VOCAB)]),
        )
        for _ in range(count)
    ]


def sent(q: np.ndarray) -> Distribution:
    """What the bytes say of a distribution."""
    return CODEC.decode(CODEC.encode(q), VOCAB)


class Script:
    """Uniform numbers by purpose and step, in place of the hash."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.values: dict[tuple[Purpose, int], float] = {}
        patch.setattr(proposals, "uniform", lambda seed, purpose, step: self.values[purpose, step])


def acceptance_of(script: Script, verify: Callable[[], Verified], position: int) -> float:
    """Probability that the token at a position stands, given that those before it do: by bisection on the grid."""
    key, low, high = (Purpose.ACCEPTANCE, position), 0, GRID
    while low < high:
        middle = (low + high) // 2
        script.values[key] = MIDDLES[middle]
        low, high = (middle + 1, high) if verify().num_accepted > position else (low, middle)
    script.values[key] = MIDDLES[0]
    return low / GRID


def outcomes(
    rule: RejectionVerifier, script: Script, tokens: Sequence[int], chain: Chain
) -> dict[tuple[int, ...], float]:
    """Probability of what one proposal commits, given its tokens; before it, token 0 was committed."""
    before = (0, *tokens)
    drafts = [sent(chain[0][token]) for token in before[:-1]]
    targets = [from_dense(chain[1][token]) for token in before]
    script.values = dict.fromkeys(itertools.product(Purpose, range(len(before))), MIDDLES[0])

    def verify() -> Verified:
        return rule.verify(tokens, targets, drafts, seed=0, step=0)

    rates = [acceptance_of(script, verify, position) for position in range(len(tokens))]
    found: dict[tuple[int, ...], float] = {}
    for num_accepted in range(len(before)):
        reached = float(np.prod(rates[:num_accepted]))
        chance = reached * (1.0 - rates[num_accepted]) if num_accepted < len(tokens) else reached
        if chance == 0.0:
            continue
        if num_accepted < len(tokens):
            script.values[Purpose.ACCEPTANCE, num_accepted] = MIDDLES[-1]
        for u in MIDDLES:
            script.values[Purpose.CORRECTION, num_accepted] = u
            committed = verify().tokens(tokens)
            found[committed] = found.get(committed, 0.0) + chance / GRID
        if num_accepted < len(tokens):
            script.values[Purpose.ACCEPTANCE, num_accepted] = MIDDLES[0]
    return found


def committed_distribution(
    rule: RejectionVerifier, chain: Chain, length: int, drawn: Sequence[np.ndarray]
) -> np.ndarray:
    """Joint distribution of the first length + 1 tokens, [VOCAB] * (length + 1); later rounds are taken as exact.

    drawn: what the drafter draws from after each token, [VOCAB, VOCAB].
    """
    joint = np.zeros((VOCAB,) * (length + 1))
    with pytest.MonkeyPatch.context() as patch:
        script = Script(patch)
        for tokens in itertools.product(range(VOCAB), repeat=length):
            chance = np.prod([drawn[a][b] for a, b in itertools.pairwise((0, *tokens))])
            if chance == 0.0:
                continue
            for committed, given in outcomes(rule, script, tokens, chain).items():
                rest = np.array(chance * given)
                for depth in range(len(committed), length + 1):
                    last = committed[-1] if depth == len(committed) else slice(None)
                    rest = rest * chain[1][last] if depth == len(committed) else rest[..., None] * chain[1]
                joint[committed] += rest
    return joint


def wanted(chain: Chain, length: int) -> np.ndarray:
    joint = chain[1][0]
    for _ in range(length):
        joint = joint[..., None] * chain[1]
    return np.asarray(joint)


def check_exact(rule: RejectionVerifier, *, is_quantised: bool = True) -> None:
    for length, count in ((1, 12), (2, 5)):
        for chain in chains(count):
            drawn = [sent(row).dense(VOCAB) if is_quantised else row for row in chain[0]]
            joint = committed_distribution(rule, chain, length, drawn)
            np.testing.assert_allclose(joint, wanted(chain, length), atol=1e-12)


def test_the_committed_tokens_follow_the_target() -> None:
    check_exact(RejectionVerifier())


def lenient(token: int, draft: Distribution, target: Distribution) -> float:
    """Accepts what the quantised distribution excludes, as the wrong rule has to."""
    return acceptance(token, draft, target) if draft.probability(token) else 1.0


def test_mutant_sample_then_quantise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts drawn from q, checked with the quantised distribution: more is accepted, and the answer is wrong."""
    monkeypatch.setattr(proposals, "acceptance", lenient)
    with pytest.raises(AssertionError):
        check_exact(RejectionVerifier(), is_quantised=False)


def test_mutant_bonus_from_the_last_token_s_own_distribution() -> None:
    class LateBonus(RejectionVerifier):
        def verify(
            self, tokens: Sequence[int], targets: Sequence[Distribution], *drafts: Any, **place: Any
        ) -> Verified:
            return super().verify(tokens, [*targets[:-1], targets[-2]], *drafts, **place)

    with pytest.raises(AssertionError):
        check_exact(LateBonus())


def test_mutant_acceptance_with_the_distribution_of_the_position_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before: dict[int, Distribution] = {}

    def previous(token: int, draft: Distribution, target: Distribution) -> float:
        found = acceptance(token, draft, before.get(0, target))
        before[0] = target
        return found

    class Forgetful(RejectionVerifier):
        def verify(self, *args: object, **options: object) -> Verified:
            before.clear()
            return super().verify(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(proposals, "acceptance", previous)
    with pytest.raises(AssertionError):
        check_exact(Forgetful())


def without_the_draft(draft: Distribution, target: Distribution) -> Distribution:
    """SpecFlow: p without the draft's most probable token, a stand-in for the drafted one."""
    dense = target.dense(VOCAB)
    dense[draft.argmax()] = 0.0
    return from_dense(dense if dense.any() else target.dense(VOCAB))


RESIDUALS: dict[str, Callable[[Distribution, Distribution], Distribution | None]] = {
    "of the distribution before quantising": lambda draft, target: residual(
        from_dense(0.8 * draft.dense(VOCAB) + 0.2 / VOCAB), target
    ),
    "p without the draft": without_the_draft,
    "p itself": lambda draft, target: target,
}


@pytest.mark.parametrize("name", RESIDUALS)
def test_mutant_residuals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "residual", RESIDUALS[name])
    with pytest.raises(AssertionError):
        check_exact(RejectionVerifier())


def test_a_token_that_its_distribution_excludes_is_refused() -> None:
    draft, target = from_dense(np.array([0.5, 0.5, 0.0])), from_dense(np.ones(3))
    with pytest.raises(ProtocolError) as caught:
        RejectionVerifier().verify([2], [target, target], [draft], seed=0, step=0)
    assert str(caught.value) == (
        "A proposed token must have a probability above zero in its own draft distribution, but token 2 has none; drop "
        "the proposal and ask the drafter again."
    )


# ---- the hashed numbers --------------------------------------------------------------------------------------

Q = np.array([[0.6, 0.25, 0.15], [0.26, 0.26, 0.48], [0.1, 0.66, 0.24]])
P = np.array([[0.2, 0.45, 0.35], [0.5, 0.25, 0.25], [0.4, 0.2, 0.4]])


def answer(rule: RejectionVerifier, num_tokens: int, seed: int, length: int) -> list[int]:
    """One long answer, proposal by proposal."""
    drafts, targets = [sent(row) for row in Q], [from_dense(row) for row in P]
    committed = [0]
    while len(committed) <= num_tokens:
        line = [committed[-1]]
        for position in range(length):
            line.append(rule.draft(drafts[line[-1]], seed=seed, step=len(committed) + position))
        verified = rule.verify(
            line[1:],
            [targets[t] for t in line],
            [drafts[t] for t in line[:-1]],
            seed=seed,
            step=len(committed),
        )
        committed += verified.tokens(line[1:])
    return committed[: num_tokens + 1]


def transitions(tokens: Sequence[int]) -> np.ndarray:
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    return counts


def check_transitions(tokens: Sequence[int], chi_square: Callable[..., None]) -> None:
    for row, p in zip(transitions(tokens), P, strict=True):
        chi_square(row, p)


def test_a_long_answer_follows_the_target(chi_square: Callable[..., None]) -> None:
    check_transitions(answer(RejectionVerifier(), 20_000, 5, 3), chi_square)


def test_mutant_one_stream_for_all(chi_square: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    real = proposals.uniform
    monkeypatch.setattr(proposals, "uniform", lambda seed, purpose, step: real(seed, Purpose.DECISION, step))
    with pytest.raises(AssertionError):
        check_transitions(answer(RejectionVerifier(), 8_000, 5, 3), chi_square)


# ---- published rules, with their known bias ------------------------------------------------------------------

NUM_DRAWS = 200_000


def biased(name: str) -> np.ndarray:
    """Counts of one committed token under rules as printed, q = Q[0] and p = P[0]."""
    q, p = Q[0], P[0]
    ids = np.arange(NUM_DRAWS * VOCAB)
    clocks = exponentials(1, Purpose.COUPLED, 0, ids).reshape(-1, VOCAB)
    fresh = exponentials(2, Purpose.COUPLED, 0, ids).reshape(-1, VOCAB)
    u = uniforms(3, Purpose.ACCEPTANCE, 0, np.arange(NUM_DRAWS))
    x, rest = np.argmax(q / clocks, axis=1), np.maximum(0, p - q)
    stands = u < np.minimum(1, p[x] / q[x])
    tokens = {
        "right": np.where(stands, x, np.argmax(rest / fresh, axis=1)),
        "SpecFed as printed": np.where(
            (q[x] < p[x]) | (u >= p[x] / q[x]), x, np.argmax(rest / fresh, axis=1)
        ),
        "FlexSpec Algorithm 2": np.where(x == p.argmax(), x, np.argmax(p / fresh, axis=1)),
    }
    return np.bincount(tokens[name], minlength=VOCAB)


@pytest.mark.parametrize(
    ("name", "total_variation"), [("SpecFed as printed", 0.201), ("FlexSpec Algorithm 2", 0.137)]
)
def test_published_rules_are_biased(
    name: str, total_variation: float, chi_square: Callable[..., None]
) -> None:
    chi_square(biased("right"), P[0])
    counts = biased(name)
    assert np.abs(counts / NUM_DRAWS - P[0]).sum() / 2 == pytest.approx(total_variation, abs=0.004)
    with pytest.raises(AssertionError):
        chi_square(counts, P[0])
