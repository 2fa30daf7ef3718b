"""Parties, their numbers on the wire, and values that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.topology import PAIR, Topology, star


def test_every_party_knows_the_way_home() -> None:
    topology = star("server", ("ada", "ben"), "ada")
    assert (topology.home, topology.authority) == ("ada", "server")
    assert [topology.toward_home(party) for party in topology.parties] == ["ada", None, "server"]
    at_server = star("server", ("ada", "ben"))
    assert [at_server.toward_home(party) for party in topology.parties] == [None, "server", "server"]
    assert [PAIR.toward_home(party) for party in PAIR.parties] == [None, "device"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parties": ()}, "A session has 1 to 64 parties (got 0); name that many."),
        ({"parties": ("a", "a")}, "Each party needs a name of its own, but 'a' is there 2 times; rename one."),
        ({"home": "claud"}, "'claud' is no party of this session; did you mean cloud?"),
        ({"authority": "x"}, "'x' is no party of this session; choose one of device, cloud."),
    ],
)  # fmt: skip
def test_a_topology_that_contradicts_itself_is_refused(changes: dict[str, Any], sentence: str) -> None:
    values: dict[str, Any] = {"parties": ("device", "cloud"), "home": "device", "authority": "device"}
    with pytest.raises(ConfigError) as refused:
        Topology(**(values | changes))
    assert str(refused.value) == sentence


def test_a_number_that_no_party_has_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        PAIR.name(2)
    assert str(refused.value) == "A session of 2 parties has no party number 2; check the sender."
