"""What runs in a cluster: nodes, models and indexes, and every actor, dead or alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.ray_handles import find_actor
from tandem.cluster import nodes
from tandem.cluster.actor_table import SUPERVISOR, read_actors
from tandem.cluster.attach import attached, current_address
from tandem.cluster.discovery import find_address
from tandem.config.schema import Config
from tandem.sites.status import ActorState, to_dict

ANSWER_LIMIT_S = 5.0
"""How long an actor may take to report."""


def read_status(address: str | None, config: Config, progress: Callable[[str], None]) -> dict[str, Any]:
    """The status of a running cluster; address: as in `Tandem.connect`. Raises ClusterError if it does not answer."""
    config.require_cluster("`tandem status`")
    address = find_address(address, config, progress)
    with attached(address, config):
        return asyncio.run(collect_status(config))


async def collect_status(config: Config) -> dict[str, Any]:
    """The status of the cluster that this process is attached to, as plain values; no dead actor makes it fail."""
    actors = read_actors(config)
    loaders = [actor for actor in actors if actor.kind == "retriever" or actor.is_decoder]
    described = await _ask_all(loaders, "describe", config)
    return {
        "cluster": current_address(),
        "nodes": _describe_nodes(config.parties),
        "parties": {str(party): _description(party, described) for party in config.parties},
        "supervisors": await _ask_supervisors(config),
        "actors": await read_reports(actors, config),
    }


async def read_reports(actors: Sequence[ActorState], config: Config) -> list[dict[str, Any]]:
    """What is known of each of these actors, with what it counts itself, as plain values."""
    reports = await _ask_all(actors, "statistics", config)
    return [to_dict(actor, reports.get(actor.name)) for actor in actors]


def _description(party: str, described: dict[str, Any]) -> dict[str, Any]:
    """What a party has loaded; all its decoders the same."""
    parts = [values for name, values in described.items() if name.startswith(f"{party}/")]
    return {key: value for part in parts for key, value in part.items()}


async def _ask_all(actors: Sequence[ActorState], method: str, config: Config) -> dict[str, Any]:
    """What each living actor's method returns, by its name; those that do not answer are left out."""
    alive = [actor.name for actor in actors if actor.is_alive]
    replies = await asyncio.gather(*(_ask(name, method, config) for name in alive))
    return {name: reply for name, reply in zip(alive, replies, strict=True) if reply is not None}


async def _ask_supervisors(config: Config) -> dict[str, Any]:
    """What the supervisor of each party that has one reports."""
    reports = {str(party): await _ask(f"{party}/{SUPERVISOR}", "report", config) for party in config.parties}
    return {party: report for party, report in reports.items() if report is not None}


async def _ask(name: str, method: str, config: Config) -> Any:
    try:
        handle = find_actor(name, config.cluster.namespace)
        return await asyncio.wait_for(getattr(handle, method).remote(), ANSWER_LIMIT_S)
    except (ValueError, RayError, TimeoutError):  # it has just died, or hangs
        return None


def _describe_nodes(parties: Sequence[str]) -> list[dict[str, Any]]:
    """Address, roles and health of each node."""
    return [
        {"address": node["NodeManagerAddress"], "roles": _roles(node, parties), "alive": node["Alive"]}
        for node in ray.nodes()
    ]


def _roles(node: dict[str, Any], parties: Sequence[str]) -> list[str]:
    return [str(party) for party in parties if nodes.PARTY_RESOURCE.format(party=party) in node["Resources"]]
