"""Where actors run: on the party's home, and several decoders on all of its nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandem.config.schema import Config, PartyConfig
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


def placed(role: str, *settings: str) -> str:
    """The node of an actor, which may be no other one."""
    options = place("cloud", role, Config.load(None, settings), detached=True)
    resources = dict(options["resources"])
    assert resources.pop("tandem_cloud") == 0.001
    if (strategy := options.get("scheduling_strategy")) is None:
        ((resource, amount),) = resources.items()
        assert amount == 0.001
        return str(resource.removeprefix("tandem_node_"))
    assert not strategy.soft
    return str(strategy.node_id[0])


@pytest.mark.parametrize("num_decoders", [1, 3])
def test_all_but_decoders_are_at_home(num_decoders: int) -> None:
    assert placed("draft_queue", f"cloud.num_decoders={num_decoders}") == "b"


def test_a_single_decoder_is_at_home() -> None:
    assert placed("decoder") == "b"


def test_several_decoders_take_the_nodes_in_turn(cluster: list[dict[str, Any]]) -> None:
    roles = PartyConfig(num_decoders=5).decoder_roles
    assert [placed(role, "cloud.num_decoders=5") for role in roles] == [*"bacba"]
    del cluster[3]
    assert [placed(role, "cloud.num_decoders=5") for role in roles] == [*"bcbcb"], "one node is lost"


def test_decoders_with_gpus_go_where_these_are_free() -> None:
    settings = ["cloud.num_decoders=2", "cloud.gpus_per_decoder=0.5", "cloud.torch_device=cuda"]
    config = Config.load(None, settings)
    spread = {"resources": SLIVER, "num_gpus": 0.5, "scheduling_strategy": "SPREAD"}
    assert place("cloud", "decoder-1", config, detached=True) == spread
    assert "num_gpus" not in place("cloud", "retriever", config, detached=True)


def test_a_node_that_has_not_joined_is_waited_for_by_ray() -> None:
    config = Config.load(None, ["cloud.num_decoders=2"])
    assert place("cloud", "decoder-1", config, detached=False) == {"resources": SLIVER}


def test_a_party_without_a_node_is_one_sentence(cluster: list[dict[str, Any]]) -> None:
    cluster[:] = [known for known in cluster if known["NodeID"] == "d" * 56]
    with pytest.raises(ClusterError, match=r"^The cloud has no node in this cluster; start one with"):
        party_nodes("cloud")
