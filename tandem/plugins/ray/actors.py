"""Ray's actors: how they are named, created and placed, found, called and stopped; what runs where.

An actor may have a process for itself or share it. A process is named after its actors: "device/decoder", or
"device/draft_queue+aggregator+profiler+scheduler". All actors of a party share Unix-domain sockets, so they run on one
of the nodes that offer its custom resource, the party's home.

Ray's interface tells who lives. Of what has died, and why, only a table that is private to Ray tells: sentences and
`tandem status` use it, nothing else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tandem.actors.base import Runtime, SharedProcess
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, TandemError
from tandem.plugins.ray import nodes
from tandem.plugins.ray.attach import attached, current_address
from tandem.plugins.ray.registry import find_address
from tandem.protocol.routes import ROLES, ActorKind
from tandem.sites.port import ActorClasses, ActorState, State, to_dict
from tandem.sites.startup import ACTOR_CLASSES

LOOK_AFTER_S = 1.0
"""A call that takes so long looks whether this machine's node is there still, and then again after as long."""
NODE_ENDED = "This machine's Ray node and its actors have ended; run `tandem down`, then `tandem up` again."


@dataclass(frozen=True, slots=True)
class RayActor:
    """An actor on Ray, as an `ActorPort`: what Ray raises is the cause of a CallError."""

    process: Any  # Ray handle
    role: str = ""  # of one that shares the process, a SharedProcess

    def start(self, method: str, *arguments: Any) -> Any:
        """Start a call of any method; returns Ray's reference to the result. Raises RayError."""
        if self.role:
            return self.process.call.remote(self.role, method, *arguments)
        return getattr(self.process, method).remote(*arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method returns. Raises the actor's TandemError, or CallError if it is lost."""
        try:
            return await while_node_runs(self.start(method, *arguments))
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TandemError):
                raise cause from error
            kind = type(cause or error).__name__  # what it says may quote a document
            raise CallError(f"A call to an actor failed with {kind}; see Ray's logs.") from error


RayActors = Mapping[str, RayActor]
"""The actors of one party, by role."""


async def while_node_runs(reference: Awaitable[Any]) -> Any:
    """The result of a call. Raises CallError once this machine's node has ended; Ray would then end this process."""
    result = asyncio.ensure_future(reference)
    try:
        while not (await asyncio.wait([result], timeout=LOOK_AFTER_S))[0]:
            if not await asyncio.to_thread(is_node_there):
                raise CallError(NODE_ENDED)
        return await result
    finally:
        result.cancel()


def is_node_there() -> bool:
    """Whether the raylet through which this process takes part in a cluster listens."""
    path = raylet_socket()
    return not path or nodes.answers(path)


def raylet_socket() -> str:
    """The socket at which this machine's raylet listens; empty if unknown."""
    with contextlib.suppress(ImportError, AttributeError):  # private to Ray; a test fails if it disappears
        return str(importlib.import_module("ray._private.worker").global_worker.node.raylet_socket_name)
    return ""


def names_in(process: str) -> list[str]:
    """The actors of a process, "party/kind", by its name."""
    party, _, roles = process.partition("/")
    return [f"{party}/{role}" for role in roles.split("+")]


def list_processes(namespace: str) -> list[str]:
    """Ray's names of the processes with actors that live or start."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [process["name"] for process in listed if process["namespace"] == namespace]


def find_actor(name: str, namespace: str) -> RayActor:
    """A running actor. Raises ValueError if there is none."""
    try:
        return RayActor(ray.get_actor(name, namespace=namespace))
    except ValueError:
        for process in list_processes(namespace):
            if name in names_in(process):
                return RayActor(ray.get_actor(process, namespace=namespace), name.partition("/")[2])
        raise


def kill_actors(actors: Iterable[RayActor]) -> None:
    """Stop the processes of actors at once."""
    for process in {actor.process for actor in actors}:
        with contextlib.suppress(RayError):
            ray.kill(process)


# ---- What runs where ---------------------------------------------------------------------------------------


STATES: dict[str, State] = {
    "ALIVE": "alive",
    "DEAD": "dead",
    "RESTARTING": "starting",
    "PENDING_CREATION": "starting",
    "DEPENDENCIES_UNREADY": "starting",
}
SUPERVISOR = "supervisor"
"""PARTY/supervisor starts a party's dead actors again (`tandem.plugins.ray.supervisor`)."""
REASON_CHARS = 120
NOTICED_S = 3.0
"""How long Ray may take to notice that a process has ended."""
ANSWER_LIMIT_S = 5.0
"""How long an actor may take to report."""


def running_actors(config: Config) -> set[str]:
    """All actors that live or start, "party/role". This process must be attached."""
    return {name for process in list_processes(config.cluster.namespace) for name in names_in(process)}


def read_actors(config: Config, parties: Iterable[str] | None = None) -> list[ActorState]:
    """All actors of these parties (default: of all), dead ones included, in order. This process must be attached."""
    newest: dict[str, ActorState] = {}
    for actor in sorted(_table(config.cluster.namespace), key=lambda actor: actor.started_s or 0.0):
        earlier = newest.get(actor.name)
        if earlier is None or actor.is_alive or not earlier.is_alive:
            newest[actor.name] = actor
    names = [f"{party}/{role}" for party in parties or config.parties for role in ROLES]
    running = set() if newest.keys() >= set(names) else running_actors(config)
    return [
        newest.get(name) or ActorState(name=name, state="alive" if name in running else "absent")
        for name in names
    ]


def is_supervised(party: str, config: Config) -> bool:
    """Whether dead actors of a party are started again without a user. This process must be attached."""
    return f"{party}/{SUPERVISOR}" in running_actors(config)


def explain_party(party: str, actors: Sequence[ActorState], config: Config) -> str | None:
    """The reason why a party cannot be used, and the remedy; None if all are alive. actors: those of the party."""
    dead = [actor for actor in actors if actor.state == "dead"]
    if dead:
        names = ", ".join(dict.fromkeys(actor.describe_end() for actor in dead))
        remedy = f"run `tandem up {party}` on its machine"
        if is_supervised(party, config):
            remedy = "its supervisor starts it again, try again in a moment"
        return f"The {party} side has lost {names}; {remedy}."
    if all(actor.state == "absent" for actor in actors):
        return (
            f"The {party} side is not up: none of its actors runs in namespace {config.cluster.namespace!r}; run "
            f"`tandem up {party} --join {current_address()}` on its machine."
        )
    if missing := [actor.name for actor in actors if not actor.is_alive]:
        return f"The {party} side is still starting ({', '.join(missing)}); try again in a moment."
    return None


def explain_loss(error: RayError, config: Config, *, is_launched: bool) -> str:
    """The sentence for a call that failed because an actor has died.

    is_launched: whether this process started the actors, so that nothing but a new launch helps.
    """
    actor_id = str(getattr(error, "actor_id", None) or "")
    actors = _read_until_noticed(config, actor_id)
    dead = [actor for actor in actors if actor.state == "dead"]
    dead.sort(key=lambda actor: actor.actor_id != actor_id)  # that one first
    if not dead and isinstance(error, RayActorError) and actor_id not in {actor.actor_id for actor in actors}:
        return "An actor of this cluster was replaced while this Tandem used it; ask again."
    if not dead:
        line = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        return f"A call to the cluster failed ({line}); see `tandem status`."
    party = dead[0].party
    remedy = f"run `tandem up {party}` on its machine, then connect again"
    if is_supervised(party, config):
        remedy = "its supervisor starts it again, ask again in a moment"
    elif is_launched:
        remedy = "close this Tandem and launch another"
    return f"The query failed because the {party} side has lost {dead[0].describe_end()}; {remedy}."


def read_status(address: str | None, config: Config, progress: Callable[[str], None]) -> dict[str, Any]:
    """The status of a running cluster; address: as in `Tandem.connect`. Raises ClusterError if it does not answer."""
    config.require_cluster("`tandem status`")
    address = find_address(address, config, progress)
    with attached(address, config):
        return asyncio.run(collect_status(config))


async def collect_status(config: Config) -> dict[str, Any]:
    """The status of the cluster that this process is attached to, as plain values; no dead actor makes it fail."""
    actors = read_actors(config)
    loaders = [actor for actor in actors if actor.role in ("retriever", "decoder")]
    described = await _ask_all(loaders, "describe", config)
    reports = await _ask_all(actors, "statistics", config)
    names = {str(party): f"{party}/{SUPERVISOR}" for party in config.parties}
    supervisors = {party: await _ask(name, "report", config) for party, name in names.items()}
    return {
        "cluster": current_address(),
        "nodes": [
            {
                "address": node["NodeManagerAddress"],
                "roles": [
                    str(party)
                    for party in config.parties
                    if nodes.PARTY_RESOURCE.format(party=party) in node["Resources"]
                ],
                "alive": node["Alive"],
            }
            for node in ray.nodes()
        ],
        "parties": {
            str(party): described.get(f"{party}/retriever", {}) | described.get(f"{party}/decoder", {})
            for party in config.parties
        },
        "supervisors": {party: report for party, report in supervisors.items() if report is not None},
        "actors": [to_dict(actor, reports.get(actor.name)) for actor in actors],
    }


async def _ask_all(actors: Sequence[ActorState], method: str, config: Config) -> dict[str, Any]:
    alive = [actor.name for actor in actors if actor.is_alive]
    replies = await asyncio.gather(*(_ask(name, method, config) for name in alive))
    return {name: reply for name, reply in zip(alive, replies, strict=True) if reply is not None}


async def _ask(name: str, method: str, config: Config) -> Any:
    try:
        actor = find_actor(name, config.cluster.namespace)
        return await asyncio.wait_for(actor.start(method), ANSWER_LIMIT_S)
    except (ValueError, RayError, TimeoutError):  # it has just died, or hangs
        return None


def _read_until_noticed(config: Config, actor_id: str) -> list[ActorState]:
    """The table once an actor's death is in it: a caller may notice a moment earlier than Ray's head."""
    deadline_s = time.monotonic() + NOTICED_S
    while True:
        try:
            actors = read_actors(config)
        except Exception:  # the head may be gone, too
            return []
        is_unnoticed = any(actor.actor_id == actor_id and actor.is_alive for actor in actors)
        if not is_unnoticed or time.monotonic() > deadline_s:
            return actors
        time.sleep(0.1)


def _table(namespace: str) -> list[ActorState]:
    """Every actor that a cluster had; empty if Ray keeps its table elsewhere in a later version."""
    try:
        messages: Any = importlib.import_module("ray.core.generated.gcs_pb2").ActorTableData
        rows = [row for row in map(messages.FromString, raw_rows()) if row.ray_namespace == namespace]
        return [_parse(row, messages, name) for row in rows for name in names_in(row.name)]
    except (ImportError, AttributeError, TypeError):  # private to Ray; a test fails if it disappears
        return []


def raw_rows() -> list[bytes]:
    """Ray's own table of actors: one message ActorTableData for each that the cluster ever had."""
    state: Any = importlib.import_module("ray._private.state").state
    return list(state._connect_and_get_accessor().get_actor_table(None, None))


def _parse(row: Any, messages: Any, name: str) -> ActorState:
    state = messages.ActorState.Name(row.state)
    return ActorState(
        name=name,
        process=row.name,
        state=STATES.get(state, "dead"),
        actor_id=row.actor_id.hex(),
        pid=row.pid or None,
        started_s=row.start_time / 1000 or None,
        ended_s=row.end_time / 1000 or None,
        reason=_reason(row.death_cause) if state == "DEAD" else "",
    )


def _reason(cause: Any) -> str:
    context = cause.WhichOneof("context") or ""
    text = str(getattr(getattr(cause, context, None), "error_message", "")) or context.replace("_", " ")
    first = text.replace("`", "").partition(". ")[0].strip().rstrip(".")
    return first.removeprefix("The actor is dead because ")[:REASON_CHARS]


# ---- The actors of a party ---------------------------------------------------------------------------------


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
        "name": f"{party}/{'+'.join(roles)}",
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
