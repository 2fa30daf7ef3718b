"""What a dual query tells and frees, beside its tokens, which `test_fuzz` compares; what a party does alone; and that
one message lost within a site costs time and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tandem.aggregation.document_weights import Weights
from tandem.events import DoneEvent, EstimateEvent, PeerEvent, PlacementEvent, SourcesEvent, TokenEvent
from tandem.messages import (
    Ballot,
    Begin,
    DecoderReady,
    End,
    Heartbeat,
    Local,
    RetrieveRequest,
    RetrieveResult,
    Verdict,
    VerifyResult,
    Vote,
)
from tandem.modes import SessionSpec
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Peer
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import Fault, make_scenario
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import VirtualRun
from tests.unit.lab.simulation.planted import put
from tests.unit.lab.simulation.world import (
    PLACEMENTS,
    Case,
    World,
    agree,
    distribution,
    make_case,
    make_spec,
    played,
    synchronous,
)


class _Drifting(World):
    """A model that never computes the same law twice, not even for the same prefix: worse than any rounding."""

    count = 0

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        self.count += 1
        return distribution(self.count, self.party, tuple(tokens), weights)


def test_one_draft_per_prefix_even_of_a_model_that_never_repeats_itself() -> None:
    """The sent bytes are what the drafter itself decodes, log_weight included: no divergence, ever."""
    for seed in range(30):
        run = make_case(seed, PLACEMENTS[seed % len(PLACEMENTS)]).make()
        for party in PARTIES:
            run.parties[party].model = _Drifting(seed, party)
        outcome = run.run()
        agree(outcome)
        assert outcome.done is not None
        assert outcome.done.statistics.num_divergences == 0


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
    for seed in range(60):
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
    assert reasons.count("cancelled" if party is Party.DEVICE else "failed") > 20
    assert {"eos", "stop", "length"} & set(reasons)  # some had finished before


@pytest.mark.parametrize("on_peer_loss", ["wait", "continue", "fail"])
def test_no_cut_of_any_start_and_length_hangs_anybody(on_peer_loss: str) -> None:
    """Cuts from before the opening to the end, and longer than either side keeps a session."""
    reasons = set()
    for seed in range(40):
        rng = random.Random(seed)
        start_s = rng.choice([0.0, 0.8, 0.8, 0.8]) * rng.random()
        cut_s = (start_s, start_s + rng.choice([0.3, 2.0, 11.0, 59.0, 70.0]))
        spec = make_spec(seed, placement=rng.choice(PLACEMENTS), on_peer_loss=on_peer_loss, max_new_tokens=16)
        case = Case(spec, Link(delay_s=0.02, jitter_s=0.02, cut_s=cut_s), rng.choice([0.03, 2.0]))
        run = case.make()
        outcome = run.run(250)
        assert outcome.done is not None, case
        assert not any(run.open_sessions(party) for party in PARTIES), case
        reasons.add(outcome.done.reason)
        tokens = outcome.of(TokenEvent)
        together = [event.token for event in tokens if not event.is_alone]
        if outcome.done.reason == "failed":
            assert outcome.done.error is not None
            assert outcome.done.error.startswith("The cloud ")
        elif on_peer_loss != "continue" or len(together) == len(tokens):
            wanted = synchronous(case.having(placement="device", on_peer_loss="wait").spec)
            assert tuple(outcome.tokens[Party.DEVICE]) == tuple(together) == wanted
    assert ("failed" in reasons) == (on_peer_loss != "continue")


# ---- one party alone -----------------------------------------------------------------------------------------------


def check_alone(seed: int, party: Party) -> None:
    """Every token is that of the draft-free loop with its own law, though its decoder crashes in every other run; no
    frame is sent."""
    scenario = make_scenario(seed)
    faults = tuple(
        Fault(kind=kind, party=party, at_step=3, after_s=0.0, seconds=0.1) for kind in ("decoder", "profiler")
    )
    spec = change_spec(scenario.spec, only=party, draft_rule="coupled")
    run = played(replace(scenario, spec=spec, faults=faults * (seed % 2), slips={}, is_rounding=False))
    outcome = run.outcome
    assert outcome.done is not None
    assert (outcome.num_frames, outcome.done.statistics.degraded_from) == (0, None)
    assert not [e for e in outcome.events if isinstance(e, PeerEvent | PlacementEvent | EstimateEvent)]
    assert outcome.tokens[party.other] == []


@pytest.mark.parametrize("party", PARTIES)
def test_a_lone_answer_is_the_party_s_own_and_no_frame_is_sent(party: Party) -> None:
    for seed in range(30):
        check_alone(seed, party)


def test_a_heartbeat_to_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a lone queue that sends as if it had a peer."""

    class SendsToNobody(Session):
        def receive(self, message: Any, now_s: float) -> list[Send]:
            sends = super().receive(message, now_s)
            return [Peer(1, now_s).send(Heartbeat(), Prefix(1), now_s), *sends] if self.is_over else sends

    put(SendsToNobody)(monkeypatch)
    with pytest.raises(AssertionError):
        check_alone(0, Party.CLOUD)


KINDS = (
    RetrieveRequest, RetrieveResult, Begin, Verdict, Vote, Ballot,
    VerifyResult, DecoderReady, End,
)  # fmt: skip


class Losing(VirtualRun):
    """A run that loses the message number `number` of one kind at one party, and counts what it lost."""

    kind: type[Any] = Begin
    number = 0
    where = Party.DEVICE
    num_lost = 0

    def is_lost(self, party: Party, send: Send) -> bool:
        message = send.message.body if isinstance(send.message, Local) else send.message
        if party is not self.where or not isinstance(message, self.kind):
            return False
        self.number -= 1
        self.num_lost += self.number == -1
        return self.number == -1


def lose(spec: SessionSpec, kind: type[Any], where: Party, number: int = 0) -> Losing:
    """A run over a good link that loses such a message."""
    run = Case(spec, Link(delay_s=0.02)).make(lambda party, rng: 0.01, kind=Losing)
    run.kind, run.where, run.number = kind, where, number
    run.run(100.0)
    assert run.num_lost == 1, "nothing was lost"
    assert not any(run.open_sessions(party) for party in PARTIES)
    return run


@pytest.mark.parametrize("where", PARTIES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_lost_message_costs_time_and_nothing_else(kind: type[Any], where: Party) -> None:
    spec = make_spec(4, placement="mirror", max_new_tokens=10, device_documents=2, cloud_documents=3)
    for number in (0, 1, 3) if kind in (Verdict, Vote, Ballot, VerifyResult) else (0,):
        outcome = lose(spec, kind, where, number).outcome
        assert agree(outcome) == synchronous(spec)
        assert outcome.ended_s < 12.0


@pytest.mark.parametrize("kind", [Verdict, Vote, Ballot, VerifyResult, RetrieveResult])
def test_a_party_that_answers_solo_is_reminded_too(kind: type[Any]) -> None:
    done = lose(
        make_spec(4, only=Party.DEVICE, max_new_tokens=10, device_documents=2), kind, Party.DEVICE
    ).outcome.done
    assert done is not None
    assert done.reason in ("eos", "stop", "length")
