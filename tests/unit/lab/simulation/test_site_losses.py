"""Messages within a site may get lost, as on a connection that breaks or is full: the query finishes all the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tandem.messages import (
    Ballot,
    Begin,
    DecoderReady,
    End,
    Local,
    Resync,
    RetrieveRequest,
    RetrieveResult,
    Verdict,
    VerifyResult,
    Vote,
)
from tandem.protocol.routes import Send
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.virtual import Outcome, VirtualRun
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


def make(case: Case, kind: type[Any], where: Party, number: int) -> Losing:
    run = case.make(lambda party, rng: 0.01, kind=Losing)
    run.kind, run.where, run.number = kind, where, number
    return run


def check(run: Losing, case: Case) -> Outcome:
    outcome = run.run(100.0)
    assert run.num_lost == 1, "nothing was lost"
    assert agree(outcome) == synchronous(case.spec)
    assert not any(run.open_sessions(party) for party in PARTIES)
    assert outcome.ended_s < 12.0
    return outcome


@pytest.mark.parametrize("where", PARTIES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_lost_message_costs_time_and_nothing_else(kind: type[Any], where: Party) -> None:
    spec = make_spec(4, placement="mirror", max_new_tokens=10, device_documents=2, cloud_documents=3)
    case = Case(spec, Link(delay_s=0.02))
    for number in (0, 1, 3) if kind in (Verdict, Vote, Ballot, VerifyResult) else (0,):
        check(make(case, kind, where, number), case)


def test_a_lost_resync_after_a_restart_is_repeated() -> None:
    for seed in range(6):
        case = Case(make_spec(seed, placement="mirror", max_new_tokens=16), Link(delay_s=0.02), 0.05)
        run = make(case, Resync, Party.CLOUD, 0)
        run.at(0.15, lambda run=run: run.crash(Party.CLOUD, "draft_queue", 0.05))  # type: ignore[misc]
        outcome = run.run(100.0)
        assert outcome.done is not None
        assert not any(run.open_sessions(party) for party in PARTIES)


@pytest.mark.parametrize("kind", [Verdict, Vote, Ballot, VerifyResult, RetrieveResult])
def test_a_party_that_answers_solo_is_reminded_too(kind: type[Any]) -> None:
    spec = make_spec(4, only=Party.DEVICE, max_new_tokens=10, device_documents=2)
    run = make(Case(spec, Link()), kind, Party.DEVICE, 0)
    outcome = run.run(100.0)
    assert run.num_lost == 1
    assert outcome.done is not None
    assert outcome.done.reason in ("eos", "stop", "length")


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_many_lost_messages(share: float) -> None:
    for seed in range(12):
        case = Case(
            make_spec(seed, placement=("mirror", "device", "cloud")[seed % 3]), Link(delay_s=0.02, drop=share)
        )
        run = make(case, Begin, Party.DEVICE, -1)
        rng = random.Random(seed)
        run.is_lost = lambda party, send, rng=rng: rng.random() < share  # type: ignore[method-assign, misc]
        outcome = run.run(1000.0)
        assert agree(outcome) == synchronous(case.spec)


def test_a_slow_decoder_is_reminded_ever_less_often() -> None:
    spec = make_spec(4, placement="mirror", max_new_tokens=1, device_documents=0, cloud_documents=0)
    run = Case(spec, Link(delay_s=0.02)).make(lambda party, rng: 60.0)
    begins = []
    original = run.deliver

    def deliver(party: Party, sends: list[Send]) -> None:
        begins.extend(run.now_s for send in sends if isinstance(send.message, Begin) and send.to == "decoder")
        original(party, sends)

    run.deliver = deliver  # type: ignore[method-assign]
    outcome = run.run(300.0)
    assert agree(outcome) == synchronous(spec)
    assert len(begins) <= 2 * 24
