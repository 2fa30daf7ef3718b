"""A limit to what a peer's vote counts (`weights.max_peer_share`): the answer of the reference page, in all modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.events import TokenEvent
from tandem.messages import Vote
from tandem.modes import query
from tandem.protocol.ballots import BallotBox
from tandem.protocol.log import Prefix
from tandem.topology import Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import InvariantError, Outcome
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import VOCAB
from tests.unit.lab.simulation.world import PLACEMENTS, Case, agree, calm, make_spec, played, synchronous

LIMITS = (0.5, 0.2)


def dual(seed: int, limit: float, placement: str, **changes: Any) -> Case:
    fixed = {"draft_rule": "coupled", "device_documents": 2, "cloud_documents": 3, "max_new_tokens": 16}
    spec = make_spec(seed, placement=placement, max_peer_share=limit, **{**fixed, **changes})
    return Case(spec, Link(delay_s=0.02, jitter_s=0.02))


def run(case: Case) -> Outcome:
    return case.make(lambda party, rng: 0.01).run()


def chain(seed: int, limit: float, home: str) -> WatchedRun:
    """Three workers that count by their documents, and nothing that gets in the way."""
    workers = ("worker-1", "worker-2", "worker-3")
    return played(
        calm(
            seed, 3, workers=workers, weights=(), home=home, max_peer_share=limit, on_peer_loss="wait",
            documents=dict.fromkeys(workers, 2), question_weight=1.0, evidence_weight=1.0, temperature=1.0,
        )
    )  # fmt: skip


def shares_of(outcome: Outcome) -> Iterator[dict[str, float]]:
    return (event.shares for event in outcome.events if isinstance(event, TokenEvent))


@pytest.mark.parametrize("race_depth", [0, 2])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dual_is_the_reference_with_the_limit(placement: str, race_depth: int) -> None:
    num_changed = 0
    for seed in range(8):
        limit = LIMITS[seed % 2]
        case = dual(seed, limit, placement, race_depth=race_depth, vocab_size=VOCAB)
        outcome = run(case)
        assert agree(outcome) == synchronous(change_spec(case.spec, placement="device"))
        num_changed += agree(outcome) != agree(run(case.having(max_peer_share=1.0)))
        for shares in shares_of(outcome):
            assert not shares or (shares["cloud"] <= limit and sum(shares.values()) == 1.0)
    assert num_changed > 0


@pytest.mark.parametrize("home", ["", "worker-2"])
def test_federated_is_the_reference_with_the_limit_for_all_but_the_home(home: str) -> None:
    answers: dict[float, list[list[int]]] = {limit: [] for limit in (1.0, *LIMITS)}
    for seed in range(3):
        for limit, found in answers.items():
            run = chain(seed, limit, home)
            found.append(run.committed)
            for event in run.tokens:
                others = [share for party, share in event.shares.items() if party != home]
                assert all(share <= max(limit, 1 / 3) + 1e-12 for share in others)
                assert bool(event.shares) is not bool(home), "a worker is told no weights of the others"
    assert answers[0.5] != answers[1.0]
    assert answers[0.2] != answers[0.5]


def test_a_run_without_the_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlimited(shares: Sequence[float], most: Sequence[float]) -> tuple[float, ...]:
        return tuple(shares)

    monkeypatch.setattr(query, "limit_shares", unlimited)
    with pytest.raises(AssertionError):
        test_dual_is_the_reference_with_the_limit("mirror", 0)
    with pytest.raises(InvariantError):
        test_federated_is_the_reference_with_the_limit_for_all_but_the_home("")


class Boasting(BallotBox):
    """The cloud claims to know all there is to know."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        if source == Party.CLOUD:
            vote = replace(vote, log_weights=(3e38,) * len(vote.log_weights))
        return super().hold(source, vote, prefix, arrived_s)


def test_a_cloud_that_claims_all_weight_gets_its_limit_and_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.protocol.session.BallotBox", Boasting)
    for limit in (1.0, *LIMITS):
        for seed in range(3):
            outcome = run(dual(seed, limit, "mirror"))
            for shares in shares_of(outcome):
                assert shares == {"device": 1.0 - limit, "cloud": 1.0 - (1.0 - limit)}
