"""Before and after a party starts: whole paths, where actors run, when it is ready to be asked. No Ray is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.config.schema import Config, PartyConfig
from tandem.errors import ClusterError
from tandem.plugins.ray import actors, bootstrap
from tandem.plugins.ray.actors import PartyLost, find_party, options_of, party_nodes
from tandem.protocol.routes import ROLES
from tandem.sites.port import ActorState
from tandem.topology import Party

SLIVER = {"tandem_cloud": 0.001}
STOPPED = "The cloud's decoder has stopped; ask again in a moment."


def node(name: str, party: str = "cloud", *, is_alive: bool = True) -> dict[str, Any]:
    return {
        "NodeID": name * 56,
        "Alive": is_alive,
        "Resources": {f"tandem_{party}": 1000.0, f"tandem_node_{name}": 1000.0},
    }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Three nodes of the cloud, of which this process is on the second, a dead one, and one of the device."""
    known = [node("c"), node("b"), node("e", is_alive=False), node("a"), node("d", "device")]
    context = SimpleNamespace(get_node_id=lambda: "b" * 56)
    fake = SimpleNamespace(nodes=lambda: known, get_runtime_context=lambda: context)
    monkeypatch.setattr(actors, "ray", fake)
    return known


@pytest.mark.parametrize("role", ["decoder", "draft_queue"])
def test_actors_are_at_home(cluster: list[dict[str, Any]], role: str) -> None:
    options = options_of("cloud", [role], Config(), is_detached=True)
    strategy = options["scheduling_strategy"]
    assert (strategy.node_id, strategy.soft) == ("b" * 56, False)
    assert (options["resources"], options.get("num_gpus")) == (SLIVER, None)


def test_a_party_without_a_node_is_one_sentence(cluster: list[dict[str, Any]]) -> None:
    cluster[:] = [known for known in cluster if known["NodeID"] == "d" * 56]
    with pytest.raises(ClusterError, match=r"^The cloud has no node in this cluster; start one with"):
        party_nodes("cloud")


def test_paths_are_absolute_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    def stop(config: Config, progress: object) -> None:
        seen.append(config)
        raise ClusterError("Enough.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bootstrap, "check_files", stop)
    with pytest.raises(ClusterError, match=r"^Enough\.$"):
        bootstrap.launch(Config(device=PartyConfig(model="./small", index="notes")), None, print, None)
    assert seen[0].device.model == str(tmp_path / "small")
    assert seen[0].device.index == str(tmp_path / "notes")


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
    monkeypatch.setattr(actors, "read_actors", lambda config, parties: alive)
    monkeypatch.setattr(actors, "find_actor", find_actor)
    monkeypatch.setattr(actors.ray, "get", lambda answers, timeout: answers)
    said = ""
    try:
        assert set(find_party(Party.CLOUD, Config())) == {*ROLES}
    except PartyLost as error:
        said = str(error)
    assert said == sentence
