"""Creates, places, finds and closes the actors of parties on a running Ray cluster.

All actors of a party share Unix-domain sockets, so they run on one of the nodes that offer its custom resource, the
party's home.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tandem.actors.base import Runtime, SharedProcess
from tandem.config.schema import Config
from tandem.errors import ClusterError, TandemError
from tandem.plugins.ray import nodes
from tandem.plugins.ray.attach import attached
from tandem.plugins.ray.table import (
    RayActor,
    RayActors,
    explain_party,
    find_actor,
    is_supervised,
    kill_actors,
    process_name,
    read_actors,
)
from tandem.protocol.routes import ROLES, ActorKind
from tandem.sites.port import ActorClasses
from tandem.sites.startup import ACTOR_CLASSES

LIGHT: tuple[ActorKind, ...] = ("aggregator", "profiler", "scheduler")
"""Actors that may share the draft queue's process."""
MAX_CONCURRENCY = 1000
"""Of one actor's calls: handlers are short, and long ones wait without blocking the event loop."""
ANSWER_S = 10.0
"""How long an actor may take to say whether it is ready."""


class PartyLost(ClusterError):
    """A party lacks an actor that is being started, or started again."""


def runtime_for(config: Config, secret: bytes, host: str | None) -> Runtime:
    """The runtime that every actor is created with. The folder for sockets is derived from the secret."""
    folder = nodes.socket_folder(hashlib.sha256(secret).hexdigest()[:12])
    return Runtime(secret=secret, directory=folder, config=config, host=host)


def create_party(
    party: str,
    runtime: Runtime,
    *,
    is_detached: bool,
    actor_classes: ActorClasses | None = None,
    roles: Collection[str] | None = None,
) -> RayActors:
    """Ask Ray for the actors of a side, in as many processes as the settings say; they start in parallel.

    is_detached: they outlive this process. actor_classes: as in `Tandem.launch`. roles: only these, each with all that
    share its process; None: all.
    """
    classes = {**ACTOR_CLASSES, **(actor_classes or {})}
    handles: dict[str, RayActor] = {}
    for shared in plan_processes(runtime.config):
        if roles is None or set(shared) & set(roles):
            handles |= _create(party, {role: classes[role] for role in shared}, runtime, is_detached)
    return handles


def plan_processes(config: Config) -> list[tuple[ActorKind, ...]]:
    """The actors of each process of a side. Light ones have little to do in mode "federated"."""
    shared = LIGHT if config.is_federated else ()
    return [(role, *shared) if role == "draft_queue" else (role,) for role in ROLES if role not in shared]


def find_party(party: str, config: Config) -> RayActors:
    """The running actors of a side. Raises ClusterError for those that are not, PartyLost if they may come back."""
    if loss := explain_party(party, read_actors(config, (party,)), config):
        raise (PartyLost if is_supervised(party, config) else ClusterError)(loss)
    try:
        handles: dict[str, RayActor] = {
            role: find_actor(f"{party}/{role}", config.cluster.namespace) for role in ROLES
        }
        asked = [handle.start("is_prepared") for handle in handles.values()]
        is_prepared = ray.get(asked, timeout=ANSWER_S)
        obstacle = ray.get(handles["draft_queue"].start("find_obstacle"), timeout=ANSWER_S)
    except (ValueError, RayError):
        raise PartyLost(f"The {party} side has just lost an actor; see `tandem status`.") from None
    if not all(is_prepared):
        raise PartyLost(f"The {party} side is still loading its model and index; try again in a moment.")
    if obstacle:
        raise PartyLost(obstacle)
    return handles


def find_loss(address: str, party: str, config: Config) -> str | None:
    """Name what a party of the cluster at `address` lacks; None if all its actors are alive. Raises ClusterError."""
    with attached(address, config):
        return explain_party(party, read_actors(config, (party,)), config)


async def close_actors(parties: Mapping[str, RayActors]) -> None:
    """Close the actors' tasks and connections, then stop the actors."""
    with contextlib.suppress(TandemError, TimeoutError):
        every = [actor for actors in parties.values() for actor in actors.values()]
        await asyncio.wait_for(asyncio.gather(*(actor.call("close") for actor in every)), 5.0)
    for handles in parties.values():
        kill_actors(handles.values())


def party_nodes(party: str) -> list[dict[str, Any]]:
    """The party's living nodes as `ray.nodes()` describes them, its home first. Raises ClusterError if it has none.

    Home is this process's node if it is one of them: that of the supervisor, once the party runs.
    """
    resource = nodes.PARTY_RESOURCE.format(party=party)
    alive = [node for node in ray.nodes() if node["Alive"] and resource in node["Resources"]]
    if not alive:
        raise ClusterError(f"The {party} has no node in this cluster; start one with `tandem up {party}`.")
    own = ray.get_runtime_context().get_node_id()
    return sorted(alive, key=lambda node: (node["NodeID"] != own, node["NodeID"]))


def options_of(party: str, roles: Sequence[str], config: Config, *, is_detached: bool) -> dict[str, Any]:
    """Ray's options for the process of some actors: its name, where it runs, and with how many GPUs.

    is_detached: it outlives this process, at the party's home; else it is on the party's only node, which need not have
    joined yet.
    """
    options: dict[str, Any] = {
        "name": process_name(party, roles),
        "namespace": config.cluster.namespace,
        "num_cpus": 0,
        "resources": {nodes.PARTY_RESOURCE.format(party=party): 0.001},
        "enable_task_events": False,
    }
    if "decoder" in roles and (num_gpus := config.party(party).gpus_per_decoder):
        options["num_gpus"] = num_gpus
    if is_detached:
        options["lifetime"] = "detached"
        home = party_nodes(party)[0]["NodeID"]
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=home, soft=False)
    return options


def _create(party: str, classes: Mapping[str, type[Any]], runtime: Runtime, is_detached: bool) -> RayActors:
    options = options_of(party, list(classes), runtime.config, is_detached=is_detached)
    options |= {"max_concurrency": MAX_CONCURRENCY, "max_task_retries": 0}
    runtime = replace(runtime, config=runtime.config.seen_by(party))
    if len(classes) == 1:
        ((role, actor_class),) = classes.items()
        return {role: RayActor(ray.remote(actor_class).options(**options).remote(party, runtime))}
    process = ray.remote(SharedProcess).options(**options).remote(party, runtime, classes)
    return {role: RayActor(process, role) for role in classes}
