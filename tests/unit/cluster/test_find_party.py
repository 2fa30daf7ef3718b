"""When a party is ready to be asked, as its actors tell; no Ray is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.plugins.ray import launch
from tandem.plugins.ray.launch import PartyLost, find_party
from tandem.protocol.routes import ROLES
from tandem.sites.port import ActorState
from tandem.topology import Party

STOPPED = "The cloud's decoder has stopped; ask again in a moment."


@pytest.mark.parametrize(
    ("unprepared", "obstacle", "sentence"),
    [
        ("", None, ""),
        (
            "cloud/retriever",
            None,
            "The cloud side is still loading its model and index; try again in a moment.",
        ),
        # a decoder that was replaced is ready a moment before the draft queue hears of it
        ("", STOPPED, STOPPED),
    ],
)
def test_a_party_is_found_once_all_that_it_needs_is_ready(
    monkeypatch: pytest.MonkeyPatch, unprepared: str, obstacle: str | None, sentence: str
) -> None:
    def find_actor(name: str, namespace: str) -> Any:
        answers = {"is_prepared": name != unprepared, "find_obstacle": obstacle}
        return SimpleNamespace(start=answers.__getitem__)

    alive = [ActorState(name=f"cloud/{role}", state="alive") for role in ROLES]
    monkeypatch.setattr(launch, "read_actors", lambda config, parties: alive)
    monkeypatch.setattr(launch, "find_actor", find_actor)
    monkeypatch.setattr(launch.ray, "get", lambda answers, timeout: answers)
    said = ""
    try:
        assert set(find_party(Party.CLOUD, Config())) == {*ROLES}
    except PartyLost as error:
        said = str(error)
    assert said == sentence
