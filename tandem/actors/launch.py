"""Creates, finds and connects the actors of both sides on a running Ray cluster.

The only module with `ray.remote` and actor options. Placement is by the custom resource that a node's role gives
(`tandem.cluster.nodes`). Knows nothing of queries.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.base import ActorStatistics, Runtime, SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import RetrieverActor
from tandem.actors.stateless import AggregatorActor, ProfilerActor, SchedulerActor
from tandem.cluster import nodes
from tandem.cluster.nodes import Host, NodeInfo
from tandem.config import Config
from tandem.errors import ClusterError, TandemError
from tandem.loading import check_model
from tandem.protocol.outbox import ROLES, ActorKind
from tandem.topology import PARTIES, Party
from tandem.transport.port import Endpoint

Progress = Callable[[str], None]
Handles = dict[ActorKind, Any]
"""Ray handles of one side's actors."""

ACTORS: dict[ActorKind, type[SiteActor]] = {
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
ATTACH_LIMIT_S = 20.0
"""A head that listens accepts a driver within this time, or never."""
MAX_CONCURRENCY = 1000  # handlers are short; long ones wait without blocking the loop


# ---- nodes ---------------------------------------------------------------------------------------------------


def start_node(role: Party, *, join: str | None, config: Config) -> NodeInfo:
    """Start this machine's node: the first of a cluster, or one that joins at `join` (host:port)."""
    environment = nodes.node_environment()
    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
    limit_s = config.cluster.start_timeout_s
    host = Host(config.link.host or None)
    if join is None:
        node = nodes.start_head(role, environment=environment, host=host)
    else:
        nodes.wait_for_port(join, limit_s)
        node = nodes.join(role, join, environment=environment, host=host)
    try:
        nodes.wait_for_port(node.address, limit_s, node)
    except ClusterError:
        node.stop()
        raise
    return node


def stop_node(info: NodeInfo) -> None:
    """Stop a node that `start_node` started, here or in an earlier process."""
    info.stop()
    nodes.remove_dead_socket_folders()


def attach(address: str, config: Config) -> None:
    """Connect this process to the cluster; ClusterError says what cannot be reached."""
    if ray.is_initialized():
        return
    nodes.wait_for_port(address, min(5.0, config.cluster.start_timeout_s))
    _read_authentication_again()
    deadline_s = time.monotonic() + min(ATTACH_LIMIT_S, config.cluster.start_timeout_s)
    while True:
        try:
            with _anonymously():
                ray.init(
                    address=address,
                    namespace=config.cluster.namespace,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    configure_logging=False,
                )
            return
        except (ConnectionError, RuntimeError, OSError, ValueError, RayError) as error:
            if time.monotonic() > deadline_s or "token" in str(error).lower():
                raise ClusterError(
                    f"A Ray cluster must accept this process at {address}, it answered "
                    f"{str(error).strip().splitlines()[0][:200]!r}; check the address and RAY_AUTH_TOKEN."
                ) from None
            time.sleep(0.2)


@contextlib.contextmanager
def _anonymously() -> Iterator[None]:
    """Ray tells all nodes the command line of each client, which may hold a filter or a path of the device."""
    utils: Any = importlib.import_module("ray._private.utils")
    told = getattr(utils, "get_entrypoint_name", None)
    if told is None:  # private to Ray: without it, the command line is told; a test looks for it
        yield
        return
    utils.get_entrypoint_name = lambda: "tandem"
    try:
        yield
    finally:
        utils.get_entrypoint_name = told


def _read_authentication_again() -> None:
    """Ray reads RAY_AUTH_MODE when it is imported; a token that was set since then counts only after this."""
    with contextlib.suppress(
        ImportError, AttributeError
    ):  # private to Ray: without it, the import's value stands
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def wait_for_roles(roles: tuple[Party, ...], limit_s: float, still_running: Callable[[], None]) -> None:
    """Wait until a node of each role has joined."""
    deadline_s = time.monotonic() + limit_s
    missing = list(roles)
    while missing:
        resources = ray.cluster_resources()
        missing = [role for role in roles if nodes.PARTY_RESOURCE.format(party=role) not in resources]
        still_running()
        if missing and time.monotonic() > deadline_s:
            raise ClusterError(
                f"Both roles need a node within {limit_s:.0f} s, but {missing[0]} has none; "
                f"start it with `tandem up {missing[0]} --join ADDRESS`."
            )
        if missing:
            time.sleep(0.05)


# ---- actors --------------------------------------------------------------------------------------------------


def check_files(config: Config, parties: tuple[Party, ...] = PARTIES) -> None:
    """What of models and indexes on this machine can be seen to be wrong without loading them: some seconds sooner, and
    before anything is started. Raises TandemError.
    """
    for party in parties:
        settings = config.party(party)
        check_model(settings)
        if settings.index_folder is not None and settings.num_documents:
            from tandem.retrieval.index import read_manifest

            read_manifest(settings.index_folder)


def runtime_for(config: Config, secret: bytes, host: str | None) -> Runtime:
    """What every actor of a cluster is given. The folder for sockets follows from the secret, so it is findable."""
    folder = nodes.socket_folder(hashlib.sha256(secret).hexdigest()[:12])
    return Runtime(secret=secret, directory=folder, config=config, host=host)


def create_party(party: Party, runtime: Runtime, *, detached: bool) -> Handles:
    """Ask Ray for the six actors of a side; they start at once and in parallel."""
    return {role: _create(party, role, runtime, detached) for role in ROLES}


def find_party(party: Party, config: Config) -> Handles:
    """The running actors of a side. Raises ClusterError where there are none."""
    try:
        return {role: ray.get_actor(f"{party}/{role}", namespace=config.cluster.namespace) for role in ROLES}
    except ValueError:
        raise ClusterError(
            f"The {party} side must be up, no actor {party}/{ROLES[0]} is in namespace "
            f"{config.cluster.namespace!r}; run `tandem up {party}` on its machine."
        ) from None


def start_party(role: Party, config: Config, progress: Progress = lambda line: None) -> None:
    """Start a side on a cluster that this process is or can be attached to; its actors outlive this process."""
    if not ray.is_initialized():
        raise ClusterError("A side is started on a cluster; call attach() first.")
    if _is_up(role, config):
        raise ClusterError(
            f"A cluster has one {role} side, and this one's is up already; ask it with `tandem ask`, "
            "or stop it with `tandem down` on its machine."
        )
    limit_s = config.cluster.start_timeout_s
    wait_for_roles((role,), limit_s, lambda: None)
    host = config.link.host or _node_ip(role)
    runtime = runtime_for(config, _shared_secret(role.other, config), host)
    handles = create_party(role, runtime, detached=True)
    try:
        asyncio.run(asyncio.wait_for(start_actors({role: handles}, progress), limit_s))
    except BaseException:
        for handle in handles.values():
            ray.kill(handle)
        raise


def _is_up(party: Party, config: Config) -> bool:
    with contextlib.suppress(ClusterError):
        find_party(party, config)
        return True
    return False


async def start_actors(parties: dict[Party, Handles], progress: Progress) -> dict[Party, dict[str, Any]]:
    """Let the actors of one or both sides listen, load and connect; says what each side loaded."""
    loaded = {party: _prepare(handles) for party, handles in parties.items()}
    endpoints = await _each(parties, "listen")
    progress(f"actors: {len(endpoints)} ready")
    for party, handles in parties.items():
        own = [endpoint for endpoint in endpoints if endpoint.name.startswith(f"{party}/")]
        await asyncio.gather(*(handles[role].wire.remote(own) for role in ROLES if role != "draft_queue"))
        await handles["draft_queue"].wire.remote(own)
    described: dict[Party, dict[str, Any]] = {party: {} for party in parties}
    for part, plural in (("retriever", "indexes"), ("decoder", "models")):
        for party in parties:
            described[party] |= await loaded[party][part]
        what = "num_documents" if part == "retriever" else "model"
        named = {
            party: described[party][what] or described[party]["factory"] for party in parties
        }  # stores: no count
        progress(f"{plural}: " + ", ".join(f"{party} {named[party]}" for party in parties))
    for handles in parties.values():
        await handles["draft_queue"].set_tokenizer.remote(await handles["decoder"].tokenizer_json.remote())
    return described


async def connect_parties(parties: dict[Party, Handles]) -> None:
    """Open the link between the two draft queues, unless it stands."""
    endpoint: Endpoint = await parties[Party.CLOUD]["draft_queue"].endpoint.remote()
    await parties[Party.DEVICE]["draft_queue"].wire.remote([endpoint])


async def describe(parties: dict[Party, Handles]) -> dict[Party, dict[str, Any]]:
    """What each side has loaded."""
    found: dict[Party, dict[str, Any]] = {}
    for party, handles in parties.items():
        found[party] = (
            await handles["retriever"].describe.remote() | await handles["decoder"].describe.remote()
        )
    return found


def unwrap(error: RayError) -> TandemError:
    """The TandemError that an actor raised, or a sentence about what Ray reports."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TandemError):
        return cause
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ClusterError(f"An actor must answer, it failed with {lines[-1][:200]!r}; see Ray's logs.")


async def statistics(parties: dict[Party, Handles]) -> list[ActorStatistics]:
    """Counters of all actors."""
    found: list[ActorStatistics] = await _each(parties, "statistics")
    return found


async def close_actors(parties: dict[Party, Handles]) -> None:
    """Stop their tasks and connections, then the actors."""
    with contextlib.suppress(RayError, TimeoutError):
        await asyncio.wait_for(_each(parties, "close"), 5.0)
    for handles in parties.values():
        for handle in handles.values():
            with contextlib.suppress(RayError):
                ray.kill(handle)


def _create(party: Party, role: ActorKind, runtime: Runtime, detached: bool) -> Any:
    options: dict[str, Any] = {
        "name": f"{party}/{role}",
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
    return ray.remote(ACTORS[role]).options(**options).remote(party, runtime)


def _prepare(handles: Handles) -> dict[str, asyncio.Future[Any]]:
    return {
        role: asyncio.ensure_future(_result(handles[role].prepare.remote()))
        for role in ("retriever", "decoder")
    }


async def _result(reference: Any) -> Any:
    return await reference


async def _each(parties: dict[Party, Handles], method: str) -> list[Any]:
    handles = [parties[party][role] for party in PARTIES if party in parties for role in ROLES]
    return list(await asyncio.gather(*(_result(getattr(handle, method).remote()) for handle in handles)))


def _shared_secret(peer: Party, config: Config) -> bytes:
    """The data plane's secret: the other side's if it is up, else a new one."""
    try:
        queue = ray.get_actor(f"{peer}/draft_queue", namespace=config.cluster.namespace)
    except ValueError:
        return secrets.token_bytes(32)
    secret: Any = ray.get(queue.secret.remote())
    return bytes(secret)


def _node_ip(role: Party) -> str:
    resource = nodes.PARTY_RESOURCE.format(party=role)
    for node in ray.nodes():
        if node["Alive"] and resource in node["Resources"]:
            return str(node["NodeManagerAddress"])
    raise ClusterError(f"The role {role} needs a node but has none; start it with `tandem up {role}`.")


def handles_of(parties: dict[Party, Handles]) -> Iterator[tuple[str, Any]]:
    """Name and handle of every actor."""
    for party, handles in parties.items():
        for role, handle in handles.items():
            yield f"{party}/{role}", handle
