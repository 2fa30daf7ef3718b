"""Where actors run: on the party's home, the decoder with its GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.plugins.ray import launch
from tandem.plugins.ray.launch import party_nodes, place

SLIVER = {"tandem_cloud": 0.001}


def node(name: str, party: str = "cloud", *, is_alive: bool = True) -> dict[str, Any]:
    return {
        "NodeID": name * 56,
        "Alive": is_alive,
        "Resources": {f"tandem_{party}": 1000.0, f"tandem_node_{name}": 1000.0},
    }


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Three nodes of the cloud, of which this process is on the second, a dead one, and one of the device."""
    known = [node("c"), node("b"), node("e", is_alive=False), node("a"), node("d", "device")]
    context = SimpleNamespace(get_node_id=lambda: "b" * 56)
    fake = SimpleNamespace(nodes=lambda: known, get_runtime_context=lambda: context)
    monkeypatch.setattr(launch, "ray", fake)
    return known


@pytest.mark.parametrize("role", ["decoder", "draft_queue"])
def test_actors_are_at_home(role: str) -> None:
    options = place("cloud", role, Config(), detached=True)
    strategy = options.pop("scheduling_strategy")
    assert (strategy.node_id, strategy.soft) == ("b" * 56, False)
    assert options == {"resources": SLIVER}


def test_a_party_without_a_node_is_one_sentence(cluster: list[dict[str, Any]]) -> None:
    cluster[:] = [known for known in cluster if known["NodeID"] == "d" * 56]
    with pytest.raises(ClusterError, match=r"^The cloud has no node in this cluster; start one with"):
        party_nodes("cloud")
