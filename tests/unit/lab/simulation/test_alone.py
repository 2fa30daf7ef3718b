"""A side that answers alone, under the virtual clock: its own law, nothing on the link, nothing left."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.events import DoneEvent, EstimateEvent, PeerEvent, PlacementEvent, TokenEvent
from tandem.messages import Heartbeat
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Peer
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
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
