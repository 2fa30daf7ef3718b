"""More queries than may wait are refused, and all that wait may fail at once; the rest is in transcripts/admission."""

from __future__ import annotations

import pytest

from tandem.errors import Code, Fault
from tandem.events import DoneEvent
from tandem.messages import Cancel, Open
from tandem.modes import SessionSpec
from tandem.protocol import table as tables
from tandem.protocol.session import StopCheck
from tandem.protocol.table import CoordinatorTable
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import bodies, events, frame

BUSY = "The {} is busy: 1 queries are open and 2 wait; retry after 30 s, or {}."


def never_complete(spec: SessionSpec) -> StopCheck:
    return lambda tokens: None


@pytest.mark.parametrize("party", list(Party))
def test_beyond_the_queue_one_sentence(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_WAITING", 2)
    table = CoordinatorTable(party, never_complete, max_open=1)
    for session in (1, 2, 3):
        table.open(make_spec(session=session, only=party), 0.0)
    (done,) = events(table.open(make_spec(session=4, only=party), 0.0))
    assert (done.reason, done.error) == ("failed", BUSY.format(party, "raise cluster.max_sessions"))
    assert not table.holds(4)
    assert table.num_waiting == 2
    if party is Party.CLOUD:
        opening = frame(Open(spec=make_spec(session=5).to_json()), session=5)
        reason = BUSY.format("cloud", "ask its owner to raise cluster.max_sessions")
        fault = Fault(code=Code.BUSY, retry_after_s=30)
        assert bodies(table.receive(opening, 0.0)) == [Cancel(reason=reason, fault=fault)]
        assert table.num_refused == 2


def test_all_that_wait_fail_at_once_where_no_query_can_be_taken() -> None:
    """As many as may wait, one after the other: no recursion."""
    obstacles: list[str | None] = [None]
    device = CoordinatorTable(Party.DEVICE, never_complete, lambda: obstacles[0], max_open=1)
    for session in range(tables.MAX_WAITING + 1):
        device.open(make_spec(session=session), 0.0)
    obstacles[0] = "The device's decoder has stopped."
    device.fail_all("The device's decoder has stopped.", 0.1)
    assert device.needs_ticks
    errors = [event.error for event in events(device.tick(0.2)) if isinstance(event, DoneEvent)]
    assert errors == ["The device's decoder has stopped."] * tables.MAX_WAITING
    assert not device.sessions
    assert not device.num_waiting
