"""Speculative runs equal the synchronous loop token for token, whatever the link does and whoever aggregates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from tandem.aggregation.document_weights import Weights
from tandem.events import DoneEvent, SourcesEvent, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import has_oracle
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import VirtualRun
from tests.unit.lab.simulation.world import (
    PLACEMENTS,
    Case,
    World,
    agree,
    answer,
    distribution,
    make_case,
    make_spec,
    synchronous,
)


def test_the_token_wise_loop_over_a_perfect_link_is_the_reference() -> None:
    num_compared = 0
    for seed in range(60):
        spec = make_spec(seed, placement="device", max_window=1)
        if has_oracle(spec):
            assert agree(Case(spec, Link()).run()) == answer(spec)
            num_compared += 1
    assert num_compared > 30


NUM_SEEDS = (60, pytest.param(200, marks=pytest.mark.nightly("more seeds")))


@pytest.mark.parametrize("num_seeds", NUM_SEEDS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_speculative_equals_synchronous_under_faults(placement: str, num_seeds: int) -> None:
    """Temperatures 0, 0.7, 1, both draft rules, evidence weights, windows 1 to 16, three ends."""
    reasons, num_rejected = set(), 0
    for seed in range(num_seeds):
        case = make_case(seed, placement)
        run = case.make()
        outcome = run.run(200)
        assert agree(outcome) == synchronous(change_spec(case.spec, placement="device")), case
        assert outcome.done is not None
        assert outcome.done.statistics.num_divergences == outcome.done.statistics.num_resyncs == 0, case
        assert not any(run.open_sessions(party) for party in PARTIES), case
        reasons.add(outcome.done.reason)
        num_rejected += outcome.done.statistics.num_tokens - outcome.done.statistics.num_device_accepted
    assert reasons == {"eos", "stop", "length"}
    assert num_rejected > num_seeds / 2  # the property was put to the test


class _Drifting(World):
    """A model that never computes the same law twice, not even for the same prefix: worse than any rounding."""

    count = 0

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        self.count += 1
        return distribution(self.count, self.party, tuple(tokens), weights)


def test_one_draft_per_prefix_even_of_a_model_that_never_repeats_itself() -> None:
    """The sent bytes are what the drafter itself decodes, log_weight included: no divergence, ever."""
    for seed in range(40):
        for placement in PLACEMENTS:
            run = make_case(seed, placement).make()
            for party in PARTIES:
                run.parties[party].model = _Drifting(seed, party)
            outcome = run.run()
            agree(outcome)
            assert outcome.done is not None
            assert outcome.done.statistics.num_divergences == 0


def _disorder(run: VirtualRun, rng: random.Random) -> None:
    """Hops within a side take up to 0.2 s more."""
    at = run.at

    def later(when_s: float, act: Callable[[], None], party: str = "") -> None:
        is_local = when_s == run.now_s + run.local_s
        at(when_s + 0.2 * rng.random() if is_local else when_s, act, party)

    run.at = later  # type: ignore[method-assign]


def test_within_a_party_order_is_no_matter_either() -> None:
    """Actors over Ray calls: a commit may overtake another on its way to the decoder, a draft another to the queue."""
    for seed in range(60):
        case = make_case(seed, PLACEMENTS[seed % len(PLACEMENTS)])
        run = case.make()
        _disorder(run, random.Random(seed))
        assert agree(run.run(200)) == synchronous(change_spec(case.spec, placement="device")), case


def test_a_run_repeats_itself() -> None:
    case = make_case(7, "cloud")
    first, second = case.run(), case.run()
    assert first.events == second.events
    assert (first.ended_s, first.num_frames) == (second.ended_s, second.num_frames)


def test_events_of_a_run() -> None:
    outcome = Case(make_spec(5, placement="device", max_new_tokens=8), Link(delay_s=0.02)).run()
    tokens = outcome.of(TokenEvent)
    assert isinstance(outcome.events[-1], DoneEvent)
    assert sorted(event.party for event in outcome.events if isinstance(event, SourcesEvent)) == sorted(
        PARTIES
    )
    assert [event.step for event in tokens] == list(range(len(tokens)))
    assert all(one.committed_s <= other.committed_s for one, other in pairwise(tokens))
    assert all(event.aggregator is Party.DEVICE and not event.is_alone for event in tokens)
    assert all(0 < event.device_decode_s < 1 and 0 < event.cloud_decode_s < 1 for event in tokens)
    statistics = outcome.events[-1].statistics
    assert statistics.num_tokens == len(tokens)
    assert statistics.num_cloud_accepted == sum(event.cloud_accepted for event in tokens)
    assert 0 < statistics.expected_cloud_acceptance <= 1
    assert statistics.rtt_s == pytest.approx(0.04, abs=2e-6)
    assert statistics.degraded_from is None
    assert 0 < statistics.first_token_s < statistics.total_s


@pytest.mark.parametrize("party", PARTIES)
def test_either_may_cancel_at_any_moment_and_both_are_free(party: Party) -> None:
    """Own cancel and the peer's, over links that lose the Cancel too."""
    reasons = []
    for seed in range(120):
        rng = random.Random(seed)
        placement = rng.choice(PLACEMENTS)
        case = make_case(seed, placement, max_new_tokens=16)
        run = case.make()
        run.at(case.link.delay_s + 1e-9 + rng.random() * 0.6, lambda run=run: run.cancel(party))  # type: ignore[misc]
        outcome = run.run(100)
        assert outcome.done is not None, case
        assert not any(run.open_sessions(each) for each in PARTIES), case
        assert outcome.ended_s < 20
        device, cloud = (outcome.tokens[each] for each in PARTIES)
        shorter = min(len(device), len(cloud))
        assert device[:shorter] == cloud[:shorter]
        reasons.append(outcome.done.reason)
        if party is Party.CLOUD and outcome.done.reason == "failed":
            assert outcome.done.error == "The cloud gave the query up: The query was cancelled."
    assert reasons.count("cancelled" if party is Party.DEVICE else "failed") > 40
    assert {"eos", "length"} & set(reasons)  # some had finished before
