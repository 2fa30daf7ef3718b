"""Starts a device and a cloud on this machine, or meets those of a running cluster; both must agree."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from tandem.actors.base import Runtime
from tandem.cluster import credentials, nodes
from tandem.cluster import launch as actors
from tandem.cluster.discovery import find_address
from tandem.cluster.launch import ActorClasses, Handles, Progress
from tandem.cluster.nodes import Host, NodeInfo
from tandem.config import Config
from tandem.errors import ClusterError, TandemError
from tandem.loop_thread import LoopThread
from tandem.topology import PARTIES, Party

HANDSHAKE_FIELDS = {
    "vocabulary_fingerprint": ("vocabulary", "use models that share a tokenizer"),
    "codec": ("codec", "use the same [codec] settings on both machines"),
    "policy": (
        "placement policy",
        "use the same decoding.placement and [scheduler] settings on both machines",
    ),
    "protocol_version": ("protocol version", "install the same version of tandem-rag on both machines"),
    "embedder_fingerprint": ("embedder", "use the same retrieval.embedder on both machines"),
    "scorer_fingerprint": ("scoring model", "use the same weights.scorer on both machines"),
}
"""What both parties must have in common before the first query, and the remedy."""


@dataclass
class Cluster:
    """Both parties' actors, the loop on which this process calls them, and what must be undone in the end."""

    parties: dict[Party, Handles]
    described: dict[Party, dict[str, Any]]  # what each party's actors reported of model and index
    loop: LoopThread
    nodes: list[NodeInfo] = field(default_factory=list)  # started by this process
    socket_folder: str = ""
    undo: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Stop what was started; a cluster that ran already is only left."""
        with contextlib.suppress(RayError, TandemError):
            if self.nodes:
                self.loop.run(actors.close_actors(self.parties))
        self.abandon()

    def abandon(self) -> None:
        """Disconnect and stop the nodes, without a word to the actors; the environment becomes what it was."""
        self.loop.close()
        self.undo.close()

    def stop_nodes(self) -> None:
        """Stop the nodes that this process started, the head last."""
        for node in reversed(self.nodes):
            node.stop()


def launch(
    config: Config,
    hosts: Mapping[Party, Host] | None,
    progress: Progress,
    actor_classes: ActorClasses | None = None,
) -> Cluster:
    """Start two Ray nodes with all actors; see `Tandem.launch`. Raises TandemError, and leaves nothing running then."""
    hosts = hosts or {party: Host() for party in PARTIES}
    if ray.is_initialized():
        raise ClusterError(
            "Tandem.launch starts its own Ray cluster, but this process is connected to one; "
            "call ray.shutdown() first, or use Tandem.connect."
        )
    config = config.with_paths(Path.cwd())  # actors work in other folders
    actors.check_files(config)
    environment = nodes.node_environment()
    host = config.link.host or hosts[Party.CLOUD].address or "127.0.0.1"
    runtime = actors.runtime_for(config, secrets.token_bytes(32), host)
    saved = {name: os.environ.get(name) for name in environment}
    cluster = Cluster({}, {}, LoopThread(), socket_folder=runtime.directory)
    cluster.undo.callback(credentials.restore_environment, saved)
    cluster.undo.callback(shutil.rmtree, runtime.directory, ignore_errors=True)
    cluster.undo.callback(cluster.stop_nodes)
    cluster.undo.callback(ray.shutdown)
    os.environ.update(environment)
    with _undo_on_failure(cluster):
        _start_nodes(cluster, runtime, environment, hosts, actor_classes or {}, progress)
        limit_s = config.cluster.start_timeout_s
        cluster.described = cluster.loop.run(_start_actors(cluster.parties, progress, limit_s))
    return cluster


def connect(address: str | None, config: Config, progress: Progress) -> Cluster:
    """Meet the parties of a running cluster (`tandem up`). Raises ClusterError.

    address: None takes `cluster.address` of the settings, then the cluster that `tandem up` started on this machine.
    """
    address = find_address(address, config, progress)
    cluster = Cluster({}, {}, LoopThread())
    with _undo_on_failure(cluster):
        cluster.undo.enter_context(actors.attached(address, config))
        cluster.parties |= {party: actors.find_party(party, config) for party in PARTIES}
        cluster.described = cluster.loop.run(_meet(cluster.parties, config))
    progress(f"parties: connected at {address}")
    return cluster


def compare(described: dict[Party, dict[str, Any]]) -> None:
    """Both parties must agree before the first query. Raises ClusterError that names both values and the remedy."""
    for key, (what, remedy) in HANDSHAKE_FIELDS.items():
        device, cloud = (described[party].get(key) for party in PARTIES)
        if device != cloud and key == "vocabulary_fingerprint":
            device, cloud = (
                f"{described[party].get('tokenizer')} ({described[party].get(key)})" for party in PARTIES
            )
        if device != cloud:
            raise ClusterError(
                f"Both parties must have the same {what}, the device has {device!r} and the cloud {cloud!r}; {remedy}."
            )


@contextlib.contextmanager
def _undo_on_failure(cluster: Cluster) -> Iterator[None]:
    try:
        yield
    except BaseException:
        cluster.abandon()
        raise


def _start_nodes(
    cluster: Cluster,
    runtime: Runtime,
    environment: dict[str, str],
    hosts: Mapping[Party, Host],
    actor_classes: ActorClasses,
    progress: Progress,
) -> None:
    """Both nodes, and the creation of their actors, which starts while the cloud's node is still joining."""
    config, limit_s = runtime.config, runtime.config.cluster.start_timeout_s
    device = nodes.start_head(Party.DEVICE, environment=environment, host=hosts[Party.DEVICE])
    cluster.nodes.append(device)
    nodes.wait_for_port(device.address, limit_s, device)
    cloud = nodes.join(Party.CLOUD, device.address, environment=environment, host=hosts[Party.CLOUD])
    cluster.nodes.append(cloud)

    def still_running() -> None:
        for node in cluster.nodes:
            if not node.is_running():
                raise ClusterError(
                    f"The {node.party} node must keep running but has stopped; see {node.log}."
                )

    actors.attach(device.address, config)
    actors.wait_for_roles((Party.DEVICE,), limit_s, still_running)
    # Ray keeps the cloud's actors waiting for its node, while the device's start already.
    for party in PARTIES:
        cluster.parties[party] = actors.create_party(
            party, runtime, detached=False, actor_classes=actor_classes
        )
    actors.wait_for_roles(PARTIES, limit_s, still_running)
    progress("nodes: 2 up (device, cloud)")


async def _start_actors(
    parties: dict[Party, Handles], progress: Progress, limit_s: float
) -> dict[Party, dict[str, Any]]:
    try:
        async with asyncio.timeout(limit_s):
            described = await actors.start_actors(parties, progress)
            compare(described)
            await actors.connect_parties(parties)
    except TimeoutError:
        raise ClusterError(
            f"All actors must be ready within {limit_s:g} s but are not; raise cluster.start_timeout_s."
        ) from None
    except RayError as error:
        raise actors.unwrap(error) from None
    return described


async def _meet(parties: dict[Party, Handles], config: Config) -> dict[Party, dict[str, Any]]:
    limit_s = config.cluster.start_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            described = await actors.describe(parties)
            compare(described)
            await actors.connect_parties(parties)
    except TimeoutError:
        raise ClusterError(
            f"Both parties must meet within {limit_s:g} s but did not; check the link between them."
        ) from None
    except RayActorError as error:
        raise ClusterError(actors.explain_loss(error, config, is_launched=False)) from None
    except RayError as error:
        raise actors.unwrap(error) from None
    return described
