"""Messages within a site may get lost, as on a connection that breaks or is full: the query finishes all the same.

`test_fuzz` loses one in fifty.
"""

from __future__ import annotations

from typing import Any

import pytest

from tandem.messages import (
    Ballot,
    Begin,
    DecoderReady,
    End,
    Local,
    RetrieveRequest,
    RetrieveResult,
    Verdict,
    VerifyResult,
    Vote,
)
from tandem.modes import SessionSpec
from tandem.protocol.routes import Send
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.virtual import VirtualRun
from tests.unit.lab.simulation.world import Case, agree, make_spec, synchronous

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
