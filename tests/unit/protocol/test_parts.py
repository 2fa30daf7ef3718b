"""The parts of a session stay small: a class with many attributes is several machines in one."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.modes.roles import dual
from tandem.protocol.backlog import Backlog, Receipts
from tandem.protocol.ballots import BallotBox
from tandem.protocol.coordinator import SessionCoordinator
from tandem.protocol.lineage import Lineage
from tandem.protocol.link import PeerLink
from tandem.protocol.reminders import Farewells, Reminder, Reminders
from tandem.protocol.round_trips import RoundTrips
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec

MAX_ATTRIBUTES = 12
_COORDINATOR = SessionCoordinator(make_spec(), Party.DEVICE, lambda tokens: None, 0.0)
PARTS: tuple[Any, ...] = (
    _COORDINATOR,
    _COORDINATOR.log,
    _COORDINATOR.routes,
    _COORDINATOR.convergence[Party.CLOUD],
    _COORDINATOR.committer,
    _COORDINATOR.lifecycle,
    _COORDINATOR.race_votes,
    _COORDINATOR.race_votes.length,
    _COORDINATOR.reporter,
    BallotBox(1, dual(), Party.DEVICE),
    PeerLink(1, 0.0),
    RoundTrips(0.0),
    Backlog(),
    Receipts(),
    Lineage(),
    Reminder(),
    Reminders(),
    Farewells(),
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_no_part_has_more_than_a_dozen_attributes(part: Any) -> None:
    assert len(vars(part)) <= MAX_ATTRIBUTES, sorted(vars(part))
    assert "nvariant" in (type(part).__doc__ or "") or len(vars(part)) <= 3
