"""Creates, finds and connects the actors of both sides on a running Ray cluster.

Here are `ray.remote` and the options of a side's actors; `supervisor` has its own. A side's actors run on a node that
offers the side's custom resource (`tandem.cluster.nodes`, `tandem.cluster.placement`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.base import Runtime
from tandem.actors.decoder_pool import decoder_roles
from tandem.actors.ray_handles import (
    Member,
    RayHandles,
    find_actor,
    kill_actors,
    process_name,
    unwrap,
)
from tandem.actors.shared import SharedProcess
from tandem.cluster import nodes
from tandem.cluster.actor_table import explain_loss, explain_party, is_supervised, needed, read_actors
from tandem.cluster.attach import attach, attached, start_node, stop_node, wait_for_node, wait_for_roles
from tandem.cluster.nodes import is_listening
from tandem.cluster.placement import place
from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.protocol.outbox import ROLES, ActorKind
from tandem.sites.deployment import ActorClasses
from tandem.sites.site import ACTOR_CLASSES
from tandem.sites.wiring import call_all, check_files

__all__ = [
    "PartyLost",
    "attach",
    "attached",
    "check_files",
    "close_actors",
    "create_party",
    "explain_loss",
    "find_loss",
    "find_party",
    "is_listening",
    "is_supervised",
    "runtime_for",
    "start_node",
    "stop_node",
    "unwrap",
    "wait_for_node",
    "wait_for_roles",
]

LIGHT: tuple[ActorKind, ...] = ("aggregator", "profiler", "scheduler")
"""Actors that may share the draft queue's process."""
MAX_CONCURRENCY = 1000
"""Of one actor's calls: handlers are short, and long ones wait without blocking the event loop."""


ANSWER_S = 10.0
"""How long an actor may take to say whether it is ready."""


class PartyLost(ClusterError):
    """A party lacks an actor that is being started, or started again."""


def runtime_for(config: Config, secret: bytes, host: str | None) -> Runtime:
    """What every actor is created with. The folder for sockets is derived from the secret."""
    folder = nodes.socket_folder(hashlib.sha256(secret).hexdigest()[:12])
    return Runtime(secret=secret, directory=folder, config=config, host=host)


def create_party(
    party: str,
    runtime: Runtime,
    *,
    detached: bool,
    actor_classes: ActorClasses = ACTOR_CLASSES,
    wanted: Collection[str] | None = None,
) -> RayHandles:
    """Ask Ray for the six actors of a side, in as many processes as the settings say; they start in parallel.

    wanted: only these, by role, each with all that share its process; None: all. actor_classes: an extension point:
    classes to use instead of those in ACTOR_CLASSES, from which they derive; a kind that is not named keeps its class.
    """
    classes = {**ACTOR_CLASSES, **actor_classes}
    handles: RayHandles = {}
    for roles in plan_processes(runtime.config):
        if wanted is not None and not set(roles) & set(wanted):
            continue
        handles |= _create(party, {role: classes[role] for role in roles}, runtime, detached)
    several = decoder_roles(runtime.config.party(party).num_decoders)[1:]
    further = {
        role: create_decoder(party, runtime, role, detached=detached, decoder_class=classes["decoder"])
        for role in several
        if wanted is None or role in wanted
    }
    return {role: handles[role] for role in ROLES if role in handles} | further


def create_decoder(
    party: str, runtime: Runtime, role: str, *, detached: bool, decoder_class: type = ACTOR_CLASSES["decoder"]
) -> Any:
    """Ask Ray for one of several decoders of a side. role: see `decoder_roles`."""
    return _create(party, {"decoder": decoder_class}, replace(runtime, role=role), detached)["decoder"]


def plan_processes(config: Config) -> list[tuple[ActorKind, ...]]:
    """The actors of a side by the process that they share. Light ones have little to do in mode "federated"."""
    shared = LIGHT if config.cluster.light_actors == "together" or config.is_federated else ()
    return [(role, *shared) if role == "draft_queue" else (role,) for role in ROLES if role not in shared]


def find_party(party: str, config: Config) -> RayHandles:
    """The running actors of a side, ready to be asked. Raises ClusterError that names those that are not.

    It is a PartyLost if that may change by itself.
    """
    if loss := explain_party(party, read_actors(config, (party,)), config):
        raise (PartyLost if is_supervised(party, config) else ClusterError)(loss)
    try:
        handles: RayHandles = {}
        for actor in needed(read_actors(config, (party,))):
            role = "decoder" if actor.is_decoder else actor.kind
            handles.setdefault(role, find_actor(actor.name, config.cluster.namespace))
        is_prepared = are_prepared(handles.values())
        obstacle = ray.get(handles["draft_queue"].find_obstacle.remote(), timeout=ANSWER_S)
    except (ValueError, RayError):
        raise PartyLost(f"The {party} side has just lost an actor; see `tandem status`.") from None
    if not all(is_prepared):
        raise PartyLost(f"The {party} side is still loading its model and index; try again in a moment.")
    if obstacle:
        raise PartyLost(obstacle)
    return handles


def are_prepared(handles: Iterable[Any]) -> list[bool]:
    """Whether each of these actors is. Raises RayError if one does not answer."""
    return list(ray.get([handle.is_prepared.remote() for handle in handles], timeout=ANSWER_S))


def find_loss(address: str, party: str, config: Config) -> str | None:
    """What a side of the cluster at `address` lacks; None if all its actors are alive. Raises ClusterError."""
    with attached(address, config):
        return explain_party(party, read_actors(config, (party,)), config)


async def close_actors(parties: Mapping[str, RayHandles]) -> None:
    """Close the actors' tasks and connections, then stop the actors."""
    with contextlib.suppress(RayError, TimeoutError):
        await asyncio.wait_for(call_all(parties, "close"), 5.0)
    for handles in parties.values():
        kill_actors(handles.values())


def _create(party: str, classes: ActorClasses, runtime: Runtime, detached: bool) -> RayHandles:
    """One process with these actors. A decoder that is one of several has its own name in the runtime."""
    roles, config = tuple(classes), runtime.config
    options: dict[str, Any] = {
        "name": process_name(party, [runtime.role] if runtime.role else roles),
        "namespace": config.cluster.namespace,
        "num_cpus": 0,
        "max_concurrency": MAX_CONCURRENCY,
        "max_task_retries": 0,
        "enable_task_events": False,
        **place(party, runtime.role or roles[0], config, detached=detached),
    }
    if detached:
        options["lifetime"] = "detached"
    spans_nodes = detached and config.party(party).num_decoders > 1
    runtime = replace(runtime, config=config.seen_by(party), spans_nodes=spans_nodes)
    if len(roles) == 1:
        return {roles[0]: ray.remote(classes[roles[0]]).options(**options).remote(party, runtime)}
    process = ray.remote(SharedProcess).options(**options).remote(party, runtime, classes)
    return {role: Member(process, role) for role in roles}
