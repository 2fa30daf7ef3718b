"""More queries than may be open: the rest wait in order, at their home or at the peer, and one too many is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import Code, Fault
from tandem.events import DoneEvent, WaitEvent
from tandem.messages import Begin, Cancel, Heartbeat, LinkFrame, Open, Verdict
from tandem.modes.spec import SessionSpec
from tandem.protocol import admission
from tandem.protocol.admission import AdmittingTable
from tandem.protocol.outbox import Send
from tandem.protocol.session import ABANDONED_S, StopCheck
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.lab.simulation.world import tick_until
from tests.unit.protocol.talk import frame, to
from tests.unit.protocol.test_opening import begun

BUSY = "The {} is busy: 1 queries are open and 2 wait; retry after 30 s, or {}."


def never_complete(spec: SessionSpec) -> StopCheck:
    return lambda tokens: None


def table(party: Party = Party.DEVICE, max_open: int = 1, obstacle: str | None = None) -> AdmittingTable:
    return AdmittingTable(party, never_complete, lambda: obstacle, max_open=max_open)


def shown(sends: list[Send]) -> list[Any]:
    return [send.message.event for send in sends if send.to == "client"]


def opening(session: int) -> LinkFrame:
    return frame(Open(spec=make_spec(session=session).to_json()), session=session)


def begun_sessions(sends: list[Send]) -> list[int]:
    return [
        send.message.session for send in sends if isinstance(send.message, Begin) and send.to == "decoder"
    ]


# ---- at home -----------------------------------------------------------------------------------------------------


def test_the_rest_waits_in_order_and_the_peer_hears_of_none() -> None:
    device = table(max_open=2)
    for session in (1, 2):
        assert to("peer", device.open(make_spec(session=session), 0.0))
    for ahead, session in enumerate((3, 4, 5)):
        sends = device.open(make_spec(session=session), 0.0)
        assert sends == [send for send in sends if send.to == "client"], "nobody else is told"
        assert shown(sends) == [WaitEvent(num_ahead=ahead)]
    assert device.num_waiting == 3
    opened = []
    for session in (2, 1, 3):
        opened += begun_sessions(device.cancel(session, 1.0))
        assert len(device.sessions) == 2
    assert opened == [3, 4, 5]
    assert not device.num_waiting


def test_the_number_may_change_while_queries_are_open() -> None:
    """A cloud says how many it takes when it is joined."""
    device = table(max_open=2)
    for session in (1, 2, 3, 4, 5):
        device.open(make_spec(session=session), 0.0)
    device.max_open = 1
    assert begun_sessions(device.cancel(1, 0.1)) == []
    assert begun_sessions(device.cancel(2, 0.2)) == [3]
    device.max_open = 3
    assert begun_sessions(device.tick(0.3)) == [4, 5]


def test_a_new_query_does_not_overtake_those_that_wait() -> None:
    """There is room before the next tick, but another came first."""
    device = table()
    device.open(make_spec(session=1), 0.0)
    device.open(make_spec(session=2), 0.0)
    device.fail(1, "Enough.", 0.1)
    assert not device.sessions
    assert shown(device.open(make_spec(session=3), 0.1)) == [WaitEvent(num_ahead=1)]
    assert begun_sessions(device.tick(0.2)) == [2]


def test_a_cancelled_query_leaves_the_queue() -> None:
    device = table()
    for session in (1, 2, 3):
        device.open(make_spec(session=session), 0.0)
    (done,) = shown(device.cancel(2, 0.1))
    assert isinstance(done, DoneEvent)
    assert done.reason == "cancelled"
    assert not device.holds(2)
    assert begun_sessions(device.cancel(1, 0.2)) == [3]


@pytest.mark.parametrize("party", list(Party))
def test_beyond_the_queue_one_sentence(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING", 2)
    device = table(party)
    for session in (1, 2, 3):
        device.open(make_spec(session=session, only=party), 0.0)
    (done,) = shown(device.open(make_spec(session=4, only=party), 0.0))
    assert (done.reason, done.error) == ("failed", BUSY.format(party, "raise cluster.max_sessions"))
    assert not device.holds(4)
    assert device.num_waiting == 2


def test_all_that_wait_fail_at_once_where_no_query_can_be_taken() -> None:
    """As many as may wait, one after the other: no recursion."""
    obstacles: list[str | None] = [None]
    device = AdmittingTable(Party.DEVICE, never_complete, lambda: obstacles[0], max_open=1)
    for session in range(admission.MAX_WAITING + 1):
        device.open(make_spec(session=session), 0.0)
    obstacles[0] = "The device's decoder has stopped."
    device.fail_all("The device's decoder has stopped.", 0.1)
    assert device.needs_ticks
    errors = [event.error for event in shown(device.tick(0.2)) if isinstance(event, DoneEvent)]
    assert errors == ["The device's decoder has stopped."] * admission.MAX_WAITING
    assert not device.sessions
    assert not device.num_waiting


# ---- at the peer -------------------------------------------------------------------------------------------------


def test_a_full_peer_shows_that_it_is_alive_and_joins_in_turn() -> None:
    cloud = table(Party.CLOUD)
    cloud.receive(opening(1), 0.0)
    for session in (2, 3):
        (answer,) = cloud.receive(opening(session), 0.0)
        assert answer.message.body == Heartbeat()
    for now_s in range(1, 50):
        (answer,) = cloud.receive(frame(Heartbeat(), session=2), float(now_s))
        assert (answer.message.body, answer.message.session) == (Heartbeat(), 2)
    assert set(cloud.sessions) == {1}
    assert begun_sessions(cloud.receive(frame(Cancel(reason="Enough.")), 50.0)) == [2]
    assert set(cloud.sessions) == {2}


def test_what_the_home_sent_meanwhile_counts() -> None:
    """Its verdicts, say: they are acknowledged as soon as the query is open, and not before."""
    cloud = table(Party.CLOUD)
    cloud.receive(opening(1), 0.0)
    cloud.receive(opening(2), 0.0)
    verdict = Verdict(step=0, tokens=(1,), accepted=(1, 1), acceptance=(), next_decider=0)
    sent = frame(verdict, session=2, number=7)
    (answer,) = to("peer", cloud.receive(sent, 0.1))
    assert answer.received == ()
    cloud.receive(frame(Cancel(reason="Enough.")), 0.2)
    received = [
        number
        for now_s in (0.3, 0.4, 0.5)
        for each in to("peer", cloud.tick(now_s))
        for number in each.received
    ]
    assert received == [7]


def test_a_device_waits_for_a_full_cloud_instead_of_going_on_alone() -> None:
    device, cloud = table(max_open=8), table(Party.CLOUD)
    cloud.receive(opening(9), 0.0)
    up = to("peer", device.open(make_spec(session=1, on_peer_loss="continue"), 0.0))
    for step in range(1, 200):
        now_s = step / 20
        down = [answer for sent in up for answer in to("peer", cloud.receive(sent, now_s))]
        for answer in down:
            device.receive(answer, now_s)
        up = to("peer", device.tick(now_s))
        assert not device.sessions[1].lost, now_s
    cloud.receive(frame(Cancel(reason="Enough."), session=9), 10.0)
    assert set(cloud.sessions) == {1}


def test_a_query_that_its_home_gave_up_is_never_opened() -> None:
    cloud = table(Party.CLOUD)
    for session in (1, 2, 3):
        cloud.receive(opening(session), 0.0)
    assert cloud.receive(frame(Cancel(reason="Enough."), session=2), 0.1) == []
    assert begun_sessions(cloud.receive(frame(Cancel(reason="Enough."), session=1), 0.2)) == [3]


def test_a_query_whose_home_fell_silent_is_forgotten() -> None:
    cloud = table(Party.CLOUD)
    cloud.receive(opening(1), 0.0)
    cloud.receive(opening(2), 0.0)
    cloud.receive(frame(Heartbeat(), session=1), ABANDONED_S)
    tick_until(cloud, ABANDONED_S + 0.1)
    assert cloud.num_waiting == 0
    assert set(cloud.sessions) == {1}


def test_a_full_peer_refuses_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING", 2)
    cloud = table(Party.CLOUD)
    for session in (1, 2, 3):
        cloud.receive(opening(session), 0.0)
    (refusal,) = to("peer", cloud.receive(opening(4), 0.0))
    reason = BUSY.format("cloud", "ask its owner to raise cluster.max_sessions")
    assert refusal.body == Cancel(reason=reason, fault=Fault(code=Code.BUSY, retry_after_s=30))
    assert cloud.num_refused == 1
    assert begun(cloud.tick(0.1)) == []
