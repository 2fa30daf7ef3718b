"""Sites in this process: all actors of a party on one event loop, without Ray.

    client --calls--> actors --objects--> actors of the same site
    draft queue --frames--> link --> draft queues of other sites

The classes are those that have a process each on a Ray cluster. Between them messages are handed over as they are; only
what crosses to another site is encoded. Each model and each index works in a thread of its own. The runtime "inline"
is all parties' sites in one process, with links in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tandem.actors.base import Runtime, SharedProcess, SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import AggregatorActor, ProfilerActor, RetrieverActor, SchedulerActor
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, ConfigError, TandemError
from tandem.protocol.routes import ROLES, ActorKind
from tandem.sites.port import ActorClasses, ActorState, Deployment, Progress, SitePort, to_dict
from tandem.sites.startup import check_files, note_pairing, start_actors, start_together
from tandem.topology import at_start
from tandem.transport.memory import MemoryNetwork
from tandem.transport.port import NewPlane

ACTOR_CLASSES: ActorClasses = {
    "retriever": RetrieverActor,
    "decoder": DecoderActor,
    "draft_queue": DraftQueueActor,
    "aggregator": AggregatorActor,
    "profiler": ProfilerActor,
    "scheduler": SchedulerActor,
}


class LocalSite(SitePort):
    """A site of actors in this process, which may be called from their event loop or any other."""

    def __init__(self, party: str, actors: Mapping[str, SiteActor], loop: asyncio.AbstractEventLoop) -> None:
        """loop: where the actors live; it must run."""
        self.party = party
        self.actors = actors
        self._loop = loop
        self._started_s = time.time()

    @classmethod
    def create(
        cls,
        party: str,
        config: Config,
        new_plane: NewPlane,
        loop: asyncio.AbstractEventLoop,
        actor_classes: ActorClasses | None = None,
    ) -> LocalSite:
        """A site whose draft queue reaches its peers through a link over which nothing but frames can come.

        new_plane: makes the draft queue's end of it. actor_classes: as in `Tandem.launch`.
        """
        classes: dict[ActorKind, type] = {**ACTOR_CLASSES, **(actor_classes or {})}
        own = config.with_names().seen_by(party)
        runtime = Runtime(secret=b"", directory="", config=own, new_plane=new_plane)
        return cls(party, SharedProcess(party, runtime, {role: classes[role] for role in ROLES}).actors, loop)

    async def status(self) -> list[dict[str, object]]:
        """Every actor, as `tandem status` shows it."""
        state = ActorState(
            name="",
            state="alive",
            process="inline",  # one for all sites
            pid=os.getpid(),
            started_s=self._started_s,
        )
        return [
            to_dict(replace(state, name=actor.name), await actor.statistics())
            for actor in self.actors.values()
        ]

    async def stop(self) -> None:
        """Stop all tasks and links; the threads end with the work that they are at."""
        await asyncio.gather(*(actor.close() for actor in self.actors.values()))

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """What a method of an actor returns. Raises CallError if the event loop is closed, or closed meanwhile."""
        place, actor = f"{at_start(self.party)}'s site", self.actors.get(role)
        if actor is None or self._loop.is_closed():
            raise CallError(f"{place} is closed; start it again.")
        work = actor.call(method, *arguments)
        if asyncio.get_running_loop() is self._loop:
            return await work
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # not the caller but the call was: the loop was stopped
                raise CallError(f"{place} was closed during a call; start it again.") from None
            raise


@dataclass(kw_only=True)
class LocalDeployment(Deployment):
    """Sites in this process: of all parties, or of one that has links to others."""

    sites: dict[str, LocalSite] = field(default_factory=dict)

    @property
    def actors(self) -> dict[str, Mapping[str, SiteActor]]:
        """The actors by party and role; to be called on the event loop only."""
        return {party: site.actors for party, site in self.sites.items()}

    async def status(self, config: Config) -> dict[str, Any]:
        """What a Ray cluster reports; there are no nodes, and all actors share one process."""
        return {
            "cluster": "inline",
            "nodes": [],
            "parties": {party: dict(description) for party, description in self.described.items()},
            "actors": [actor for site in self.sites.values() for actor in await site.status()],
        }

    def close(self) -> None:
        """Stop all sites."""
        with contextlib.suppress(TandemError):
            self.loop.run(self._stop())
        self.loop.close()

    async def start_alone(
        self,
        party: str,
        config: Config,
        new_plane: NewPlane,
        progress: Progress,
        actor_classes: ActorClasses | None,
    ) -> None:
        """Start the site of one party whose peers are elsewhere. Raises TandemError."""
        limit_s, loop = config.cluster.start_timeout_s, asyncio.get_running_loop()
        self.sites[party] = LocalSite.create(party, config, new_plane, loop, actor_classes)
        try:
            async with asyncio.timeout(limit_s):
                self.described |= await start_actors(self.actors, config, progress)
        except TimeoutError:
            raise ClusterError(
                f"The {party} must be ready within {limit_s:g} s but is not; raise cluster.start_timeout_s."
            ) from None

    async def _stop(self) -> None:
        await asyncio.gather(*(site.stop() for site in self.sites.values()))


def launch(
    config: Config, progress: Progress, actor_classes: ActorClasses | None = None, hosts: object = None
) -> LocalDeployment:
    """Start every party's site here; see `Tandem.launch`. Raises TandemError; nothing runs then."""
    if hosts is not None:
        raise ConfigError(
            'hosts says where Ray nodes run, but the runtime is "inline", which has none; leave out hosts, or use the '
            'runtime "ray".'
        )
    config = config.resolve(Path.cwd())
    check_files(config, progress=progress)
    deployment, network = LocalDeployment(), MemoryNetwork()
    try:
        for party in config.parties:
            deployment.sites[party] = LocalSite.create(
                party, config, network.new_plane, deployment.loop.event_loop, actor_classes
            )
        deployment.described = deployment.loop.run(start_together(deployment.actors, config, progress))
    except BaseException:
        deployment.close()
        raise
    note_pairing(config, deployment.described, progress)
    return deployment
