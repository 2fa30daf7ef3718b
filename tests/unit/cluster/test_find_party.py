"""When a party is ready to be asked, as its actors tell; no Ray is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandem.cluster import launch
from tandem.cluster.launch import PartyLost, find_party
from tandem.config.schema import Config
from tandem.protocol.outbox import ROLES
from tandem.sites.status import ActorState
from tandem.topology import Party

STOPPED = "The cloud's decoder has stopped; ask again in a moment."


class FakeParty:
    """The actors of a cloud that all live, and what they say of themselves."""

    def __init__(self) -> None:
        self.unprepared: set[str] = set()
        self.obstacle: str | None = None

    def read_actors(self, config: Config, parties: tuple[str, ...]) -> list[ActorState]:
        return [ActorState(name=f"{party}/{role}", state="alive") for party in parties for role in ROLES]

    def find_actor(self, name: str, namespace: str) -> Any:
        answers = {"is_prepared": name not in self.unprepared, "find_obstacle": self.obstacle}
        return SimpleNamespace(start=answers.__getitem__)


@pytest.fixture
def party(monkeypatch: pytest.MonkeyPatch) -> FakeParty:
    fake = FakeParty()
    monkeypatch.setattr(launch, "read_actors", fake.read_actors)
    monkeypatch.setattr(launch, "find_actor", fake.find_actor)
    monkeypatch.setattr(launch.ray, "get", lambda answers, timeout: answers)
    return fake


def test_all_actors_of_a_party_that_is_up_are_found(party: FakeParty) -> None:
    assert set(find_party(Party.CLOUD, Config())) == {*ROLES}


def test_one_whose_actor_still_loads_is_not(party: FakeParty) -> None:
    party.unprepared.add("cloud/retriever")
    with pytest.raises(PartyLost, match=r"^The cloud side is still loading its model and index"):
        find_party(Party.CLOUD, Config())


def test_nor_one_whose_queries_have_no_decoder_yet(party: FakeParty) -> None:
    """A decoder that was replaced is ready a moment before the draft queue hears of it."""
    party.obstacle = STOPPED
    with pytest.raises(PartyLost, match=f"^{STOPPED}$"):
        find_party(Party.CLOUD, Config())
