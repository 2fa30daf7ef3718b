"""The lottery: the token of a step is the draft of one party, drawn as often as the party counts.

Exact by enumeration of the owner's number and quadrature over the noise of the race; then by counting whole answers of
two tokens, through the parties' drafters and the aggregator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tandem.aggregation import coupling, rules
from tandem.aggregation.coupling import Purpose, race, uniform
from tandem.codecs.top_p import TopP
from tandem.codecs.votes import write_token
from tandem.engine.drafter import TokenDrafter, TokenVoter
from tandem.messages import Ballot, VerifyResult
from tandem.messages.wire import to_float32
from tandem.modes import SessionSpec, tally
from tandem.protocol.services import AggregatorSession
from tandem.topology import PARTIES
from tandem_lab.simulation.specs import make_spec
from tests.distributions import from_dense
from tests.laws.test_law_coupled import HIGH, LOW, probability

Draw = Callable[..., int]
SHARES = ((0.3, 0.7), (0.1, 0.6, 0.0, 0.3), (0.0, 1.0), (1.0, 0.0), (0.4,))
NUMBERS = [(place + 0.5) / 1000 for place in range(1000)]
VOCAB = 5
NUM_ANSWERS = 5_000


@pytest.mark.parametrize("shares", SHARES)
def test_each_voter_owns_as_many_numbers_as_it_counts(
    shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all numbers of a grid that the shares divide; what the last sum leaves over is the last voter's."""
    counts = [0] * len(shares)
    for number in NUMBERS:
        monkeypatch.setattr(rules, "uniform", lambda *args, number=number: number)
        counts[rules.draw_owner(shares, seed=0, step=0)] += 1
    exact = [round(1000 * share) for share in shares]
    exact[-1] += 1000 - sum(exact)
    assert counts == exact


def decide(spec: SessionSpec, step: int, tokens: tuple[int, ...], weights: tuple[float, ...]) -> VerifyResult:
    """What an aggregator decides by these votes."""
    ballot = Ballot(
        session=1,
        view=0,
        step=step,
        digest=bytes(8),
        voters=tuple(range(len(tokens)))
        if spec.decoding.mode == "dual"
        else tuple(range(1, 1 + len(tokens))),
        tokens=(),
        payloads=tuple(map(write_token, tokens)),
        log_weights=weights,
    )
    return AggregatorSession(spec, spec.parties[0], TopP()).decide(ballot)


def test_a_token_is_as_probable_as_in_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens: exactly, for the shares 0.3 and 0.7 of ten equal parts of the owner's number."""
    spec = make_spec(draft_rule="lottery", temperature=1.0, vocab_size=3)
    device, cloud = from_dense(LOW), from_dense(HIGH)
    monkeypatch.setattr(type(spec.roles), "shares", lambda *args: (0.3, 0.7))
    total = 0.0
    for tenth in range(10):
        monkeypatch.setattr(rules, "uniform", lambda *args, u=(tenth + 0.5) / 10: u)

        def wins(first: float, second: float) -> bool:
            clocks = np.array([first, second])
            drafts = tuple(race(each, clocks) for each in (device, cloud))
            return decide(spec, 0, drafts, (0.0, 0.0)).tokens == (0,)

        total += probability(wins) / 10
    assert total == pytest.approx(0.3 * 0.25 + 0.7 * 0.6, abs=1e-11)


# ---- whole answers -----------------------------------------------------------------------------------------


def count_answers(spec: SessionSpec, log_weights: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """How often each answer of two tokens comes, and how often by the mixture it should; [vocab, vocab].

    Every voter draws by the product's own drafter, the owner by the product's aggregator.
    """
    voters = spec.roles.voters
    logits = np.random.default_rng(len(voters)).normal(size=(len(voters), 1 + VOCAB, 1, VOCAB)) * 1.5
    make: Any = TokenDrafter if spec.decoding.mode == "dual" else TokenVoter
    drafter = make(TopP(), spec.sampling, spec.rules.drawing_rule, VOCAB, sends_drafts=False)
    dense = np.array([[drafter.distribution(row, [0.0]) for row in rows] for rows in logits])
    shares = spec.roles.shares([spec.roles.topology.index(voter) for voter in voters], log_weights)
    mixtures = np.einsum("v,vpt->pt", shares, dense)
    counts = np.zeros((VOCAB, VOCAB))
    for seed in range(NUM_ANSWERS):
        tokens: list[int] = []
        of_seed = replace(spec, seed=seed)
        for step in range(2):
            rows = logits[:, 1 + tokens[0] if tokens else 0]
            drafts = tuple(
                drafter.draft(row, [0.0], seed=seed, step=step, party=party).token
                for row, party in zip(rows, [*PARTIES, *PARTIES], strict=False)
            )
            tokens += decide(of_seed, step, drafts, log_weights).tokens
        counts[tokens[0], tokens[1]] += 1
    return counts, mixtures[0][:, None] * mixtures[1:]


OPTIONS: dict[str, dict[str, Any]] = {
    "dual": dict(draft_rule="lottery", temperature=1.0, vocab_size=VOCAB),
    "federated": dict(
        draft_rule="lottery", temperature=1.0, vocab_size=VOCAB, mode="federated", weights=(0.2, 0.5, 0.3)
    ),
}
WEIGHTS = {"dual": (to_float32(0.2), to_float32(-0.7)), "federated": ()}


@pytest.mark.parametrize("mode", OPTIONS)
def test_answers_come_as_often_as_the_mixture_says(
    mode: str, chi_square: Callable[[np.ndarray, np.ndarray], None]
) -> None:
    """A false alarm in 10^9; the mutants below have the same number of answers."""
    counts, law = count_answers(make_spec(**OPTIONS[mode]), WEIGHTS[mode])
    chi_square(counts, law)


def by_the_race(shares: tuple[float, ...], *, seed: int, step: int) -> int:
    """The owner is drawn by a number of the race itself."""
    u = float(np.exp(-coupling.exponentials(seed, Purpose.COUPLED, step, np.array([0]))[0]))
    return int(np.searchsorted(np.cumsum(shares), u, side="right"))


def once_for_two(shares: tuple[float, ...], *, seed: int, step: int) -> int:
    """The next step has the same owner's number, and the token that comes next tells of it."""
    return rules.draw_owner(shares, seed=seed, step=step // 2)


def the_other_way(shares: tuple[float, ...], *, seed: int, step: int) -> int:
    """The shares are laid in the opposite order, and counted in the right one."""
    return rules.draw_owner(shares[::-1], seed=seed, step=step)


@pytest.mark.parametrize("mutant", [by_the_race, the_other_way])
@pytest.mark.parametrize("mode", OPTIONS)
def test_another_owner_is_found(
    mode: str,
    mutant: Draw,
    monkeypatch: pytest.MonkeyPatch,
    chi_square: Callable[[np.ndarray, np.ndarray], None],
) -> None:
    monkeypatch.setattr(tally, "draw_owner", mutant)
    counts, law = count_answers(make_spec(**OPTIONS[mode]), WEIGHTS[mode])
    with pytest.raises(AssertionError, match="chi-square"):
        chi_square(counts, law)


def test_owners_of_two_steps_are_independent(chi_square: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Counts of both owners; and a number that is used twice is found."""
    shares, n = (0.2, 0.5, 0.3), 30_000
    law = np.outer(shares, shares)

    def count(draw: Draw) -> np.ndarray:
        counts = np.zeros((3, 3))
        for seed in range(n):
            counts[draw(shares, seed=seed, step=0), draw(shares, seed=seed, step=1)] += 1
        return counts

    chi_square(count(rules.draw_owner), law)
    with pytest.raises(AssertionError, match="chi-square"):
        chi_square(count(once_for_two), law)


def test_the_owner_does_not_tell_of_the_race(chi_square: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Who owns a step is independent of which token wins it: a two by two table of whether both numbers are small."""
    counts = np.zeros((2, 2))
    for seed, step in product(range(3000), range(4)):
        owner = uniform(seed, Purpose.OWNER, step) < 0.5
        token = float(coupling.exponentials(seed, Purpose.COUPLED, step, np.array([0]))[0]) < np.log(2)
        counts[int(owner), int(token)] += 1
    chi_square(counts, np.full((2, 2), 0.25))
