"""What becomes of a query when the cloud is lost, for a while or for good."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from tandem.events import PeerEvent, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import Outcome
from tests.unit.lab.simulation.world import (
    ENDLESS,
    PLACEMENTS,
    Case,
    agree,
    make_spec,
    synchronous,
)

FOREVER = 1e9


def long_case(seed: int, cut_s: tuple[float, float] | None, **changes: object) -> Case:
    """16 tokens unless end-of-sequence comes first; half a second or so without a cut."""
    spec = make_spec(seed, max_new_tokens=16, evidence_memory=0.5, **changes)
    return Case(spec, Link(delay_s=0.02, jitter_s=0.02, cut_s=cut_s))


def expected(case: Case) -> tuple[int, ...]:
    return synchronous(change_spec(case.spec, placement="device", on_peer_loss="wait"))


@pytest.mark.parametrize("suspended", [(Party.DEVICE,), PARTIES])
@pytest.mark.parametrize("on_peer_loss", ["continue", "fail"])
def test_a_device_that_was_suspended_does_not_lose_its_cloud(
    suspended: tuple[Party, ...], on_peer_loss: str
) -> None:
    """With both parties in one process both stand still."""
    for seed in range(20):
        case = long_case(seed, None, placement="mirror", on_peer_loss=on_peer_loss)
        run = case.make()
        for party in suspended:
            run.at(0.05 + 0.02 * seed, partial(run.stall, party, 3.0))
        outcome = run.run(100)
        assert outcome.done is not None
        assert not outcome.of(PeerEvent), seed
        assert tuple(event.token for event in outcome.of(TokenEvent)) == expected(case)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_cut_that_never_ends_leaves_the_device_to_finish_alone(placement: str) -> None:
    num_degraded = 0
    for seed in range(30):
        cut_s = (0.05 + 0.02 * seed, FOREVER)
        case = long_case(seed, cut_s, placement=placement, on_peer_loss="continue")
        run = case.make()
        outcome = run.run(100)
        assert outcome.done is not None
        assert outcome.done.reason in ("eos", "stop", "length")
        tokens = outcome.of(TokenEvent)
        assert [event.token for event in tokens] == outcome.tokens[Party.DEVICE]
        alone = [event.step for event in tokens if event.is_alone]
        assert outcome.done.statistics.degraded_from == (alone[0] if alone else None)
        num_together = alone[0] if alone else len(tokens)
        together = [event.token for event in tokens[:num_together]]
        assert tuple(together) == expected(case)[:num_together]
        if alone:
            num_degraded += 1
            assert alone == list(range(alone[0], len(tokens)))
            lost = outcome.of(PeerEvent)
            assert [event.is_alone for event in lost] == [True]
            assert lost[0].step <= alone[0]  # pairs that were complete at the loss are decided as pairs
            assert all(
                event.aggregator is Party.DEVICE and event.device_accepted for event in tokens[alone[0] :]
            )
            assert 1.2 < tokens[alone[0]].committed_s - cut_s[0] < 2.5  # after 0.5 s and the margin of 1 s
        assert not any(run.open_sessions(party) for party in PARTIES)  # the cloud's after a minute of silence
        assert outcome.ended_s < 65
    assert num_degraded > 10


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_after_a_cut_the_cloud_adopts_and_both_end_equal(placement: str) -> None:
    num_rejoined = 0
    for seed in range(60):
        case = long_case(seed, (0.1, 1.9 + 0.01 * seed), placement=placement, on_peer_loss="continue")
        case = replace(case, mean_decode_s=0.15)
        run = case.make()
        outcome = run.run(100)
        assert outcome.done is not None
        tokens = outcome.of(TokenEvent)
        num_together = next((event.step for event in tokens if event.is_alone), len(tokens))
        assert [event.token for event in tokens] == outcome.tokens[Party.DEVICE]
        assert tuple(event.token for event in tokens[:num_together]) == expected(case)[:num_together]
        peers = [event.is_alone for event in outcome.events if isinstance(event, PeerEvent)]
        assert peers in ([], [True], [True, False])
        assert outcome.done.statistics.num_resyncs == peers.count(False)
        assert outcome.done.statistics.num_divergences == 0
        if not tokens[-1].is_alone or peers[-1:] == [False]:
            assert outcome.tokens[Party.CLOUD] == outcome.tokens[Party.DEVICE]
        if peers == [True, False] and num_together < len(tokens):
            num_rejoined += any(not event.is_alone for event in tokens[num_together:])
        assert not any(run.open_sessions(party) for party in PARTIES)
        assert outcome.ended_s < 20
    assert num_rejoined > 10


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_who_waits_gets_the_same_answer(placement: str) -> None:
    for seed in range(30):
        case = long_case(seed, (0.02 * seed, 0.02 * seed + 7.0), placement=placement, on_peer_loss="wait")
        assert agree(case.run(100)) == expected(case)
        longer = replace(case, link=replace(case.link, cut_s=(0.02 * seed, 40.0))).run(100)
        assert tuple(longer.tokens[Party.DEVICE]) == expected(
            case
        )  # of a finished device the cloud may hear no more


@pytest.mark.parametrize("on_peer_loss", ["wait", "continue", "fail"])
def test_no_cut_of_any_start_and_length_hangs_anybody(on_peer_loss: str) -> None:
    """Cuts about the end too, and longer than either side keeps a session."""
    reasons = set()
    for seed in range(90):
        rng = random.Random(seed)
        start_s = rng.random() * 0.8
        case = long_case(
            seed,
            (start_s, start_s + rng.choice([0.3, 2.0, 11.0, 59.0, 70.0])),
            placement=rng.choice(PLACEMENTS),
            on_peer_loss=on_peer_loss,
        )
        case = replace(case, mean_decode_s=rng.choice([0.03, 2.0]))
        run = case.make()
        outcome = run.run(250)
        assert outcome.done is not None, case
        assert not any(run.open_sessions(party) for party in PARTIES), case
        reasons.add(outcome.done.reason)
        if outcome.done.reason == "failed":
            assert outcome.done.error is not None
            assert outcome.done.error.startswith("The cloud ")
        elif on_peer_loss == "wait":
            assert tuple(outcome.tokens[Party.DEVICE]) == expected(case)
    assert ("failed" in reasons) == (on_peer_loss != "continue")


# ---- a cloud that is away when the query is asked ---------------------------------------------------------------


def _away(seed: int, on_peer_loss: str, away_s: float = 5.0) -> tuple[Case, Outcome]:
    spec = make_spec(
        seed, placement="mirror", max_new_tokens=400, on_peer_loss=on_peer_loss, peer_loss_margin_s=0.2,
        eos_token_ids=(),
    )  # fmt: skip
    case = Case(spec, Link(delay_s=0.02, cut_s=(0.0, away_s)))
    run = case.make(lambda party, rng: 0.03, first_end=ENDLESS)
    return case, run.run(200.0)


def test_a_device_begins_alone_and_the_cloud_joins_when_it_is_there() -> None:
    _, outcome = _away(1, "continue")
    assert outcome.done is not None
    tokens = outcome.of(TokenEvent)
    assert len(tokens) == 400
    assert tokens[0].is_alone
    assert not tokens[-1].is_alone, "the cloud has joined"
    assert outcome.done.statistics.degraded_from == 0
    assert outcome.tokens[Party.DEVICE] == outcome.tokens[Party.CLOUD]
