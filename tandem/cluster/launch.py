"""Creates, finds and connects the actors of both sides on a running Ray cluster.

The only module with `ray.remote` and actor options. A side's actors run on the node that offers the side's custom
resource (`tandem.cluster.nodes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.base import Runtime, SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.handles import Member, find_actor, kill_actors, process_name
from tandem.actors.retriever import RetrieverActor
from tandem.actors.shared import SharedProcess
from tandem.actors.stateless import AggregatorActor, ProfilerActor, SchedulerActor
from tandem.cluster import nodes
from tandem.cluster.actor_table import ActorState, explain_loss, explain_party, read_actors
from tandem.cluster.attach import attach, attached, start_node, stop_node, wait_for_roles
from tandem.cluster.nodes import is_listening
from tandem.config import Config
from tandem.errors import ClusterError, TandemError
from tandem.loading import check_model
from tandem.protocol.outbox import ROLES, ActorKind
from tandem.topology import PARTIES, Party
from tandem.transport.port import Endpoint

__all__ = [
    "ACTOR_CLASSES",
    "attach",
    "attached",
    "check_files",
    "close_actors",
    "connect_parties",
    "create_party",
    "describe",
    "explain_loss",
    "find_loss",
    "find_party",
    "is_listening",
    "runtime_for",
    "start_actors",
    "start_node",
    "start_party",
    "stop_node",
    "unwrap",
    "wait_for_roles",
]

Progress = Callable[[str], None]
Handles = dict[ActorKind, Any]
"""Ray handles of one side's actors, or Members of a process that several share."""

ActorClasses = Mapping[ActorKind, type[SiteActor]]
ACTOR_CLASSES: ActorClasses = {
    actor.role: actor
    for actor in (
        RetrieverActor,
        DecoderActor,
        DraftQueueActor,
        AggregatorActor,
        ProfilerActor,
        SchedulerActor,
    )
}
LIGHT: tuple[ActorKind, ...] = ("aggregator", "profiler", "scheduler")
"""Actors that may share the draft queue's process."""
MAX_CONCURRENCY = 1000
"""Of one actor's calls: handlers are short, and long ones wait without blocking the event loop."""


def check_files(config: Config, parties: tuple[Party, ...] = PARTIES) -> None:
    """Check models and indexes on this machine without loading them, before anything starts. Raises TandemError."""
    for party in parties:
        settings = config.party(party)
        check_model(settings)
        if settings.index_folder is not None and settings.num_documents:
            from tandem.retrieval.index import read_manifest

            read_manifest(settings.index_folder)


def runtime_for(config: Config, secret: bytes, host: str | None) -> Runtime:
    """What every actor is created with. The folder for sockets is derived from the secret."""
    folder = nodes.socket_folder(hashlib.sha256(secret).hexdigest()[:12])
    return Runtime(secret=secret, directory=folder, config=config, host=host)


def create_party(
    party: Party, runtime: Runtime, *, detached: bool, actor_classes: ActorClasses = ACTOR_CLASSES
) -> Handles:
    """Ask Ray for the six actors of a side, in as many processes as the settings say; they start in parallel.

    actor_classes: an extension point: classes to use instead of those in ACTOR_CLASSES, from which they derive; a kind
    that is not named keeps its class.
    """
    classes = {**ACTOR_CLASSES, **actor_classes}
    handles: Handles = {}
    for roles in plan_processes(runtime.config):
        handles |= _create(party, {role: classes[role] for role in roles}, runtime, detached)
    return {role: handles[role] for role in ROLES}


def plan_processes(config: Config) -> list[tuple[ActorKind, ...]]:
    """The actors of a side by the process that they share."""
    shared = LIGHT if config.cluster.light_actors == "together" else ()
    return [(role, *shared) if role == "draft_queue" else (role,) for role in ROLES if role not in shared]


def find_party(party: Party, config: Config) -> Handles:
    """The running actors of a side. Raises ClusterError that names those that are not."""
    if loss := explain_party(party, read_actors(config, (party,)), config):
        raise ClusterError(loss)
    try:
        return {role: find_actor(f"{party}/{role}", config.cluster.namespace) for role in ROLES}
    except ValueError:
        raise ClusterError(f"The {party} side has just lost an actor; see `tandem status`.") from None


def find_loss(address: str, party: Party, config: Config) -> str | None:
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
        asyncio.run(asyncio.wait_for(start_actors({role: handles}, progress), limit_s))
    except BaseException:
        kill_actors(handles.values())
        raise


def _stop_rest(actors: Sequence[ActorState], config: Config) -> None:
    """Stop those of a side's actors that still run, so that their names are free."""
    for actor in actors:
        with contextlib.suppress(ValueError):  # there is none of that name
            kill_actors([find_actor(actor.name, config.cluster.namespace)])


async def start_actors(parties: dict[Party, Handles], progress: Progress) -> dict[Party, dict[str, Any]]:
    """Have the actors of one or both sides bind, load and connect; returns the descriptions of what they loaded."""
    loaded = {party: _prepare(handles) for party, handles in parties.items()}
    endpoints = await _each(parties, "bind")
    progress(f"actors: {len(endpoints)} ready")
    for party, handles in parties.items():
        own = [endpoint for endpoint in endpoints if endpoint.name.startswith(f"{party}/")]
        await asyncio.gather(
            *(handles[role].connect_peers.remote(own) for role in ROLES if role != "draft_queue")
        )
        await handles["draft_queue"].connect_peers.remote(own)
    described: dict[Party, dict[str, Any]] = {party: {} for party in parties}
    for part, plural in (("retriever", "indexes"), ("decoder", "models")):
        for party in parties:
            described[party] |= await loaded[party][part]
        what = "num_documents" if part == "retriever" else "model"
        shown = {
            party: described[party][what] or described[party]["factory"] for party in parties
        }  # no count: a store
        progress(f"{plural}: " + ", ".join(f"{party} {shown[party]}" for party in parties))
    for handles in parties.values():
        await handles["draft_queue"].set_tokenizer.remote(await handles["decoder"].tokenizer_json.remote())
    return described


async def connect_parties(parties: dict[Party, Handles]) -> None:
    """Open the link between the two draft queues, unless it is open already."""
    endpoint: Endpoint = await parties[Party.CLOUD]["draft_queue"].endpoint.remote()
    await parties[Party.DEVICE]["draft_queue"].connect_peers.remote([endpoint])


async def describe(parties: dict[Party, Handles]) -> dict[Party, dict[str, Any]]:
    """Descriptions of what each side has loaded."""
    return {
        party: await handles["retriever"].describe.remote() | await handles["decoder"].describe.remote()
        for party, handles in parties.items()
    }


def unwrap(error: RayError) -> TandemError:
    """The TandemError that an actor raised, or one that quotes Ray."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TandemError):
        return cause
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ClusterError(f"A call to an actor failed: {lines[-1][:200]!r}; see Ray's logs.")


async def close_actors(parties: dict[Party, Handles]) -> None:
    """Close the actors' tasks and connections, then stop the actors."""
    with contextlib.suppress(RayError, TimeoutError):
        await asyncio.wait_for(_each(parties, "close"), 5.0)
    for handles in parties.values():
        kill_actors(handles.values())


def _create(party: Party, classes: ActorClasses, runtime: Runtime, detached: bool) -> Handles:
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


def _prepare(handles: Handles) -> dict[str, asyncio.Future[Any]]:
    loading: dict[str, asyncio.Future[Any]] = {
        role: asyncio.ensure_future(_result(handles[role].prepare.remote()))
        for role in ("retriever", "decoder")
    }
    for future in loading.values():  # where another one fails first, nobody asks for the error of this one
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return loading


async def _result(reference: Any) -> Any:
    return await reference


async def _each(parties: dict[Party, Handles], method: str) -> list[Any]:
    handles = [parties[party][role] for party in PARTIES if party in parties for role in ROLES]
    return list(await asyncio.gather(*(_result(getattr(handle, method).remote()) for handle in handles)))


def _shared_secret(peer: Party, config: Config) -> bytes:
    """The data plane's secret: that of the other side if it is up, otherwise a new one."""
    try:
        queue = find_actor(f"{peer}/draft_queue", config.cluster.namespace)
        secret: Any = ray.get(queue.secret.remote())
    except (ValueError, RayError):  # there is none, or it has just died
        return secrets.token_bytes(32)
    return bytes(secret)


def _node_ip(role: Party) -> str:
    resource = nodes.PARTY_RESOURCE.format(party=role)
    for node in ray.nodes():
        if node["Alive"] and resource in node["Resources"]:
            return str(node["NodeManagerAddress"])
    raise ClusterError(f"The {role} has no node in this cluster; start one with `tandem up {role}`.")
