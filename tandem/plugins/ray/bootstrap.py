"""Starts all parties on this machine, or meets those of a running cluster; all must agree."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from tandem.actors.base import Runtime
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, TandemError
from tandem.plugins.ray import nodes, registry
from tandem.plugins.ray.actors import (
    NODE_ENDED,
    PartyLost,
    RayActors,
    close_actors,
    collect_status,
    create_party,
    explain_loss,
    find_party,
    is_node_there,
    is_supervised,
    runtime_for,
)
from tandem.plugins.ray.attach import attach, attached, wait_for_roles
from tandem.plugins.ray.nodes import NodeInfo
from tandem.sites.port import ActorClasses, Deployment, Host, Progress, SitePort
from tandem.sites.startup import (
    check_files,
    compare,
    connect_parties,
    describe,
    note_pairing,
    share_vocabularies,
    start_together,
)

AGAIN_S = 0.5
"""Between two attempts to find a party that is being started again."""


class RaySite(SitePort):
    """A party on Ray, whose actors are found again after one of them has died: it may have been replaced."""

    def __init__(self, actors: RayActors, find: Callable[[], RayActors] | None = None) -> None:
        """find: None where nobody replaces them. Raises TandemError while that has not been done."""
        self._actors, self._find = actors, find
        self._has_lost = False

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """What a method of an actor returns, of one that was replaced, too. Raises CallError if it is lost."""
        if self._has_lost and self._find is not None:
            try:
                self._actors = self._find()
            except TandemError as error:
                raise CallError(str(error)) from None
            self._has_lost = False
        try:
            return await self._actors[role].call(method, *arguments)
        except CallError as error:
            self._has_lost = self._has_lost or isinstance(error.__cause__, RayActorError)
            raise


@dataclass(kw_only=True)
class Cluster(Deployment):
    """All parties' sites on Ray, and what must be undone in the end."""

    sites: dict[str, RaySite] = field(default_factory=dict)
    actors: dict[str, RayActors] = field(default_factory=dict)  # that this process started
    nodes: list[NodeInfo] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Stop what was started; a cluster that ran already is only left."""
        if self.nodes:
            with contextlib.suppress(RayError, TandemError):
                self.loop.run(close_actors(self.actors))
        self.abandon()

    def abandon(self) -> None:
        """Disconnect and stop the nodes, without a word to the actors; the environment becomes what it was."""
        self.loop.close()
        self.undo.close()

    async def status(self, config: Config) -> dict[str, Any]:
        """Nodes, models, indexes and every actor, dead or alive."""
        return await collect_status(config)

    def explain_loss(self, error: CallError, config: Config) -> str:
        """The sentence for a call that failed because an actor has died, as Ray's own error or table says."""
        if not isinstance(error.__cause__, RayError):
            return str(error)
        return explain_loss(error.__cause__, config, is_launched=bool(self.nodes))

    def stop_nodes(self) -> None:
        """Stop the nodes that this process started, the head last."""
        for node in reversed(self.nodes):
            node.stop()


def launch(
    config: Config,
    hosts: Mapping[Any, Host] | None,
    progress: Progress,
    actor_classes: ActorClasses | None,
) -> Cluster:
    """Start a Ray node per party with all actors; see `Tandem.launch`. Raises TandemError; nothing runs then."""
    if ray.is_initialized():
        raise ClusterError(
            "Tandem.launch starts its own Ray cluster, but this process is connected to one; "
            "call ray.shutdown() first, or use Tandem.connect."
        )
    config = config.resolve(Path.cwd())  # actors work in other folders
    hosts = {party: (hosts or {}).get(party, Host()) for party in config.parties}
    check_files(config, progress=progress)
    environment = nodes.node_environment()
    host = config.link.host or hosts[config.topology.dialled[0]].address or "127.0.0.1"
    runtime = runtime_for(config, secrets.token_bytes(32), host)
    cluster = Cluster(socket_folder=runtime.directory)
    cluster.undo.enter_context(registry.kept_environment(environment))
    cluster.undo.callback(shutil.rmtree, runtime.directory, ignore_errors=True)
    cluster.undo.callback(cluster.stop_nodes)
    cluster.undo.callback(ray.shutdown)
    os.environ.update(environment)
    with ExitStack() as on_failure:
        on_failure.callback(cluster.abandon)
        _start_nodes(cluster, runtime, environment, hosts, actor_classes, progress)
        cluster.described = cluster.loop.run(start_together(cluster.actors, config, progress))
        note_pairing(config, cluster.described, progress)
        on_failure.pop_all()
    return cluster


def connect(address: str | None, config: Config, progress: Progress) -> Cluster:
    """Meet the parties of a running cluster; see `Tandem.connect`. Raises ClusterError."""
    config.require_cluster("Tandem.connect")
    address = registry.find_address(address, config, progress)
    cluster = Cluster()
    with ExitStack() as on_failure:
        on_failure.callback(cluster.abandon)
        cluster.undo.enter_context(attached(address, config))
        _find_parties(cluster, config, progress)
        on_failure.pop_all()
    progress(f"parties: connected at {address}")
    note_pairing(config, cluster.described, progress)
    return cluster


def _find_parties(cluster: Cluster, config: Config, progress: Progress) -> None:
    """Find and meet the parties; where a supervisor starts one again, wait for it. Raises ClusterError."""
    deadline_s = time.monotonic() + config.cluster.start_timeout_s
    is_waiting = False
    while True:
        try:
            parties = _find_present(config, progress)
            for party, actors in parties.items():
                cluster.sites[party] = RaySite(actors, partial(find_party, party, config))
            cluster.described = cluster.loop.run(_meet(parties, config))
            return
        except PartyLost as error:
            if not is_node_there():
                raise ClusterError(NODE_ENDED) from None
            if time.monotonic() > deadline_s:
                raise
            if not is_waiting:
                progress(f"waiting: {error}")
            is_waiting = True
            time.sleep(AGAIN_S)


def _find_present(config: Config, progress: Progress) -> dict[str, RayActors]:
    """The parties that are up. Raises ClusterError where one is missing without which nothing can be answered."""
    parties: dict[str, RayActors] = {}
    missing: dict[str, ClusterError] = {}
    for party in config.parties:
        try:
            parties[party] = find_party(party, config)
        except PartyLost:
            raise
        except ClusterError as error:
            missing[party] = error
            if party not in config.workers or config.link.on_peer_loss != "continue":
                raise
    if missing and not any(party in config.workers for party in parties):
        raise next(iter(missing.values()))
    for party in missing:
        progress(f"{party}: not up, the others answer without it")
    return parties


def _start_nodes(
    cluster: Cluster,
    runtime: Runtime,
    environment: dict[str, str],
    hosts: Mapping[str, Host],
    actor_classes: ActorClasses | None,
    progress: Progress,
) -> None:
    """All nodes, and the creation of their actors, which starts while nodes are still joining."""
    config, limit_s = runtime.config, runtime.config.cluster.start_timeout_s
    first, second, *_ = config.parties

    def start(party: str, join: str | None = None) -> NodeInfo:
        cluster.nodes.append(
            nodes.start(party, config, environment=environment, join=join, host=hosts[party], is_owned=True)
        )
        return cluster.nodes[-1]

    head = start(first)
    start(second, head.address)
    nodes.wait_for_port(head.address, limit_s, head)

    def still_running() -> None:
        for node in cluster.nodes:
            if not node.is_running():
                raise ClusterError(
                    f"The {node.party} node must keep running but has stopped; see {node.log}."
                )

    attach(head.address, config)
    for number, party in enumerate(config.parties, 1):
        if number > 2:  # one at a time: on one machine they would take each other's ports
            start(party, head.address)
        wait_for_roles(config.parties[:number], limit_s, still_running)
        # Only now: Ray would start actors that wait for their node in any order, and loading takes longest.
        cluster.actors[party] = create_party(party, runtime, is_detached=False, actor_classes=actor_classes)
        cluster.sites[party] = RaySite(cluster.actors[party])
    progress(f"nodes: {len(config.parties)} up ({', '.join(config.parties)})")


async def _meet(parties: Mapping[str, RayActors], config: Config) -> dict[str, dict[str, Any]]:
    limit_s = config.cluster.start_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            described = await describe(parties)
            compare(described, may_share=True)
            await share_vocabularies(parties, described)
            await connect_parties(parties, config.topology)
    except TimeoutError:
        raise ClusterError(
            f"Both parties must meet within {limit_s:g} s but did not; check the link between them."
        ) from None
    except CallError as error:
        if isinstance(error.__cause__, RayActorError):
            sentence = explain_loss(error.__cause__, config, is_launched=False)
            may_return = all(is_supervised(party, config) for party in parties)
            raise (PartyLost if may_return else ClusterError)(sentence) from None
        raise
    return described
