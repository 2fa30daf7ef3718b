"""A side that answers alone, under the virtual clock: its own law, nothing on the link, nothing left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.events import EstimateEvent, PeerEvent, PlacementEvent
from tandem.messages import Heartbeat
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Peer
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.scenario import Fault, make_scenario
from tandem_lab.simulation.specs import change_spec
from tests.unit.lab.simulation.planted import put
from tests.unit.lab.simulation.world import played


def check(seed: int, party: Party) -> None:
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
        check(seed, party)


def test_a_heartbeat_to_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a lone queue that sends as if it had a peer."""

    class SendsToNobody(Session):
        def receive(self, message: Any, now_s: float) -> list[Send]:
            sends = super().receive(message, now_s)
            return [Peer(1, now_s).send(Heartbeat(), Prefix(1), now_s), *sends] if self.is_over else sends

    put(SendsToNobody)(monkeypatch)
    with pytest.raises(AssertionError):
        check(0, Party.CLOUD)
