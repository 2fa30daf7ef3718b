"""A side that answers alone, under the virtual clock: its own law, nothing on the link, nothing left."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.errors import ProtocolError
from tandem.events import DoneEvent, EstimateEvent, PeerEvent, PlacementEvent, TokenEvent
from tandem.messages import Heartbeat
from tandem.modes.spec import SessionSpec
from tandem.protocol.outbox import Send
from tandem.protocol.peer import Peer
from tandem.protocol.prefix import Prefix
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import make_spec as fixed_spec
from tandem_lab.simulation.virtual import Outcome, VirtualRun
from tandem_lab.simulation.world import distribution
from tests.unit.lab.simulation.test_mutants import put
from tests.unit.lab.simulation.world import CODEC, Case, make_spec

SEEDS = range(40)


def lone(seed: int, party: Party, **changes: Any) -> Case:
    return Case(
        make_spec(seed, only=party, **{"placement": "greedy", **changes}), Link(delay_s=0.15, drop=1.0)
    )


def check(case: Case, outcome: Outcome) -> None:
    """Every token is the draw from the side's own law of its prefix; no frame was sent."""
    party = case.spec.only
    assert party is not None
    done = outcome.done
    assert isinstance(done, DoneEvent)
    assert done.reason in ("eos", "stop", "length")
    assert (outcome.num_frames, done.statistics.degraded_from) == (0, None)
    assert not [e for e in outcome.events if isinstance(e, PeerEvent | PlacementEvent | EstimateEvent)]
    tokens = [event.token for event in outcome.events if isinstance(event, TokenEvent)]
    assert tokens == outcome.tokens[party]
    assert outcome.tokens[party.other] == []
    rule = draft_rule(case.spec.decoding.draft_rule, case.spec.sampling.temperature)
    if case.spec.num_documents(party) == 0:  # then the law has no weights to follow
        for step, token in enumerate(tokens):
            own = CODEC.decode(distribution(case.spec.seed, party, tuple(tokens[:step]), ()))
            assert token == rule.draft(own, seed=case.spec.seed, step=step, party=party)


@pytest.mark.parametrize("party", PARTIES)
def test_a_lone_answer_is_the_party_s_own_and_no_frame_is_sent(party: Party) -> None:
    for seed in SEEDS:
        case = lone(seed, party)
        check(case, case.run())


@pytest.mark.parametrize("party", PARTIES)
def test_speculative_equals_synchronous(party: Party) -> None:
    for seed in SEEDS:
        case = lone(seed, party)
        assert case.run().tokens == case.having(max_window=1).run().tokens


@pytest.mark.parametrize("party", PARTIES)
def test_no_draft_is_wasted_but_those_past_the_end(party: Party) -> None:
    """Drafts run ahead and all are accepted."""
    for seed in SEEDS:
        case = lone(seed, party)
        outcome = case.run()
        assert outcome.num_forwards[party.other] == 0
        assert outcome.num_forwards[party] <= len(outcome.tokens[party]) + case.spec.decoding.max_window


def test_a_heartbeat_to_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a lone queue that sends as if it had a peer."""

    class SendsToNobody(Session):
        def receive(self, message: Any, now_s: float) -> list[Send]:
            sends = super().receive(message, now_s)
            return [Peer(1, now_s).send(Heartbeat(), Prefix(1), now_s), *sends] if self.is_over else sends

    put(SendsToNobody)(monkeypatch)
    case = lone(0, Party.CLOUD)
    with pytest.raises(AssertionError):
        check(case, case.run())


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("at_s", [0.005, 0.1, 0.25])
def test_cancelled_and_failed_answers_are_freed_without_a_frame(party: Party, at_s: float) -> None:
    for end in ("cancel", "fail"):

        def plant(run: VirtualRun, end: str = end) -> None:
            def act() -> None:
                queue = run.parties[party].queue
                spec = run.spec
                sends: list[Send] = (
                    queue.cancel(spec.session, run.now_s)
                    if end == "cancel"
                    else queue.fail(spec.session, "It broke.", run.now_s)
                )
                run.deliver(party, sends)

            run.at(at_s + 0.15, act, party)

        outcome = lone(3, party, max_new_tokens=200, temperature=1.0).run(prepare=plant)
        assert outcome.done is not None
        assert outcome.done.reason in ("cancelled", "failed", "eos", "stop")
        assert outcome.num_frames == 0
        assert outcome.ended_s < 60


def test_frames_of_a_lone_session_are_refused() -> None:
    """Nobody but a peer with the same session could send one; there is none."""
    run = lone(3, Party.CLOUD).make()
    run.run(0.05)
    queue = run.parties[Party.CLOUD].queue.sessions[run.spec.session]
    device = Session(make_spec(3), Party.DEVICE, lambda tokens: None, 0.0)
    frame = device.begin(0.0)[-1].message
    with pytest.raises(ProtocolError, match="of a query in which it has no link to the cloud"):
        queue.receive_frame(frame, 0.3)
    assert queue.resend_all(0.3) == []
    assert not run.parties[Party.CLOUD].queue.has_silent_peer(1e6)


def test_a_crashed_decoder_goes_on() -> None:
    for party in PARTIES:
        for seed in range(10):
            case = lone(seed, party)

            def plant(run: VirtualRun, party: Party = party) -> None:
                run.at(0.2, lambda: run.crash(party, "decoder", 0.1))
                run.at(0.25, lambda: run.crash(party, "profiler", 0.1))

            outcome = case.run(prepare=plant)
            check(case, outcome)
            assert outcome.tokens == case.run().tokens


def test_a_spec_travels_whole() -> None:
    for only in (None, *PARTIES):
        spec = fixed_spec(session=1, query="é", seed=0, only=only, stop=("ü",))
        assert SessionSpec.from_json(spec.to_json()) == spec
        assert SessionSpec.from_json(spec.to_json()).only == only
