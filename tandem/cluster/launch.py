"""Creates, finds and connects the actors of both sides on a running Ray cluster.

The only module with `ray.remote` and actor options. A side's actors run on the node that offers the side's custom
resource (`tandem.cluster.nodes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.base import Runtime
from tandem.actors.ray_handles import (
    Member,
    RayHandles,
    find_actor,
    kill_actors,
    process_name,
    unwrap,
    wrap,
)
from tandem.actors.shared import SharedProcess
from tandem.cluster import nodes
from tandem.cluster.actor_table import ActorState, explain_loss, explain_party, read_actors
from tandem.cluster.attach import attach, attached, start_node, stop_node, wait_for_roles
from tandem.cluster.nodes import is_listening
from tandem.config import Config
from tandem.errors import ClusterError
from tandem.protocol.outbox import ROLES, ActorKind
from tandem.sites.deployment import ActorClasses, Progress
from tandem.sites.site import ACTOR_CLASSES
from tandem.sites.wiring import call_all, check_files, start_actors
from tandem.topology import Party

__all__ = [
    "attach",
    "attached",
    "check_files",
    "close_actors",
    "create_party",
    "explain_loss",
    "find_loss",
    "find_party",
    "is_listening",
    "runtime_for",
    "start_node",
    "start_party",
    "stop_node",
    "unwrap",
    "wait_for_roles",
]

LIGHT: tuple[ActorKind, ...] = ("aggregator", "profiler", "scheduler")
"""Actors that may share the draft queue's process."""
MAX_CONCURRENCY = 1000
"""Of one actor's calls: handlers are short, and long ones wait without blocking the event loop."""


def runtime_for(config: Config, secret: bytes, host: str | None) -> Runtime:
    """What every actor is created with. The folder for sockets is derived from the secret."""
    folder = nodes.socket_folder(hashlib.sha256(secret).hexdigest()[:12])
    return Runtime(secret=secret, directory=folder, config=config, host=host)


def create_party(
    party: str, runtime: Runtime, *, detached: bool, actor_classes: ActorClasses = ACTOR_CLASSES
) -> RayHandles:
    """Ask Ray for the six actors of a side, in as many processes as the settings say; they start in parallel.

    actor_classes: an extension point: classes to use instead of those in ACTOR_CLASSES, from which they derive; a kind
    that is not named keeps its class.
    """
    classes = {**ACTOR_CLASSES, **actor_classes}
    handles: RayHandles = {}
    for roles in plan_processes(runtime.config):
        handles |= _create(party, {role: classes[role] for role in roles}, runtime, detached)
    return {role: handles[role] for role in ROLES}


def plan_processes(config: Config) -> list[tuple[ActorKind, ...]]:
    """The actors of a side by the process that they share. Light ones have little to do in mode "federated"."""
    shared = LIGHT if config.cluster.light_actors == "together" or config.is_federated else ()
    return [(role, *shared) if role == "draft_queue" else (role,) for role in ROLES if role not in shared]


def find_party(party: str, config: Config) -> RayHandles:
    """The running actors of a side. Raises ClusterError that names those that are not."""
    if loss := explain_party(party, read_actors(config, (party,)), config):
        raise ClusterError(loss)
    try:
        return {role: find_actor(f"{party}/{role}", config.cluster.namespace) for role in ROLES}
    except ValueError:
        raise ClusterError(f"The {party} side has just lost an actor; see `tandem status`.") from None


def find_loss(address: str, party: str, config: Config) -> str | None:
    """What a side of the cluster at `address` lacks; None if all its actors are alive. Raises ClusterError."""
    with attached(address, config):
        return explain_party(party, read_actors(config, (party,)), config)


def start_party(role: Party, config: Config, progress: Progress = lambda line: None) -> None:
    """Start a side on a cluster that this process is attached to; its actors outlive this process.

    What is left of a side that has lost actors is stopped first.
    """
    if not ray.is_initialized():
        raise ClusterError("This process is not connected to a cluster; call attach() first.")
    actors = read_actors(config, (role,))
    if explain_party(role, actors, config) is None:
        raise ClusterError(
            f"The {role} side of this cluster is already up. Ask it with `tandem ask`, or stop it with `tandem down` "
            "on its machine."
        )
    _stop_rest(actors, config)
    limit_s = config.cluster.start_timeout_s
    wait_for_roles((role,), limit_s, lambda: None)
    host = config.link.host or _node_ip(role)
    runtime = runtime_for(config, _shared_secret(role.other, config), host)
    handles = create_party(role, runtime, detached=True)
    try:
        asyncio.run(asyncio.wait_for(start_actors({role: wrap(handles)}, progress), limit_s))
    except BaseException:
        kill_actors(handles.values())
        raise


def _stop_rest(actors: Sequence[ActorState], config: Config) -> None:
    """Stop those of a side's actors that still run, so that their names are free."""
    for actor in actors:
        with contextlib.suppress(ValueError):  # there is none of that name
            kill_actors([find_actor(actor.name, config.cluster.namespace)])


async def close_actors(parties: Mapping[str, RayHandles]) -> None:
    """Close the actors' tasks and connections, then stop the actors."""
    with contextlib.suppress(RayError, TimeoutError):
        await asyncio.wait_for(call_all(parties, "close"), 5.0)
    for handles in parties.values():
        kill_actors(handles.values())


def _create(party: str, classes: ActorClasses, runtime: Runtime, detached: bool) -> RayHandles:
    """One process with these actors."""
    roles = tuple(classes)
    options: dict[str, Any] = {
        "name": process_name(party, roles),
        "namespace": runtime.config.cluster.namespace,
        "num_cpus": 0,
        "resources": {nodes.PARTY_RESOURCE.format(party=party): 0.001},
        "max_concurrency": MAX_CONCURRENCY,
        "max_task_retries": 0,
        "enable_task_events": False,
    }
    if detached:
        options["lifetime"] = "detached"
    runtime = replace(runtime, config=runtime.config.seen_by(party))
    if len(roles) == 1:
        return {roles[0]: ray.remote(classes[roles[0]]).options(**options).remote(party, runtime)}
    process = ray.remote(SharedProcess).options(**options).remote(party, runtime, classes)
    return {role: Member(process, role) for role in roles}


def _shared_secret(peer: str, config: Config) -> bytes:
    """The data plane's secret: that of the other side if it is up, otherwise a new one."""
    try:
        queue = find_actor(f"{peer}/draft_queue", config.cluster.namespace)
        secret: Any = ray.get(queue.secret.remote())
    except (ValueError, RayError):  # there is none, or it has just died
        return secrets.token_bytes(32)
    return bytes(secret)


def _node_ip(role: str) -> str:
    resource = nodes.PARTY_RESOURCE.format(party=role)
    for node in ray.nodes():
        if node["Alive"] and resource in node["Resources"]:
            return str(node["NodeManagerAddress"])
    raise ClusterError(f"The {role} has no node in this cluster; start one with `tandem up {role}`.")
