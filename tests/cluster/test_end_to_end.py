"""The whole main job on a real two-node cluster: documents on both sides, one answer."""

from __future__ import annotations

import importlib
from pathlib import Path

import psutil
import pytest
import ray

from tandem import Tandem
from tandem.plugins.ray.actors import is_node_there, raylet_socket
from tests.cluster.recorded import CASES, TEMPERATURES, check_answers

from .conftest import descendants

QUESTION = "Which game should Mira try?"


def test_two_ray_nodes_one_for_each_role(rag: Tandem) -> None:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    names = sorted(name for node in nodes for name in node["Resources"] if name.startswith("tandem_"))
    roles = [name for name in names if not name.startswith("tandem_node_")]
    assert (len(nodes), roles) == (2, ["tandem_cloud", "tandem_device"])
    assert len(names) - len(roles) == 2, "and each has a resource that only it offers"


def test_it_is_known_where_this_machines_raylet_listens(rag: Tandem) -> None:
    """Ray keeps it to itself; with it gone from there, a query whose node has ended would wait for a minute."""
    assert Path(raylet_socket()).is_socket()
    assert is_node_there()
    assert hasattr(importlib.import_module("ray._private.worker"), "print_to_stdstream")


def test_nothing_of_a_cluster_on_one_machine_is_reached_from_others(rag: Tandem) -> None:
    """Ray would listen on all interfaces, since it takes the machine's address for the loopback's."""
    open_at = {
        connection.laddr.ip.removeprefix("::ffff:")
        for pid in descendants({node.pid for node in rag.nodes})
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert open_at == {"127.0.0.1"}


def test_every_actor_runs_on_the_node_of_its_party(rag: Tandem) -> None:
    status = rag.status()
    assert sorted(actor["name"] for actor in status["actors"]) == sorted(
        f"{party}/{role}"
        for party in ("cloud", "device")
        for role in ("retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler")
    )
    assert len({actor["pid"] for actor in status["actors"]}) == 12


def test_only_models_import_torch(rag: Tandem) -> None:
    rag.query(QUESTION)
    imports = {actor["name"].split("/")[1]: actor["imports_torch"] for actor in rag.status()["actors"]}
    assert {role for role, does in imports.items() if does} == {"decoder"}


def test_no_node_is_told_the_command_line_of_a_client(rag: Tandem) -> None:
    """It may hold a filter or a path of the device; Ray tells it to all nodes if it is let."""
    from ray._private import state

    entrypoints = [job.get("Entrypoint", job.get("entrypoint")) for job in state.jobs()]
    assert entrypoints
    assert set(entrypoints) == {"tandem"}


PAIRS = (range(2, 4), pytest.param(range(8), marks=pytest.mark.nightly("four times as many pairs")))
"""The first two are asked in one process, by `tests/unit/sites`."""


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_live_answers_are_those_recorded(
    rag: Tandem, codec: str, case: str, temperature: int, pairs: range
) -> None:
    check_answers(rag, codec, case, temperature, pairs)
