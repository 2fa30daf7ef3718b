"""The runtime "inline": the sites of all parties in this process, on one event loop, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.actors.handles import Handles
from tandem.config.schema import Config
from tandem.errors import CallError, ConfigError, TandemError
from tandem.sites.agreement import warn_of_drafter
from tandem.sites.deployment import ActorClasses, Progress
from tandem.sites.site import Site
from tandem.sites.wiring import check_files, start_together
from tandem.system.loop_thread import LoopThread
from tandem.transport.memory import MemoryNetwork

ADDRESS = "inline"
"""What `status` says in the place of a cluster's address."""


@dataclass
class InlineSites:
    """All parties' sites in this process, each with links to the others in memory."""

    loop: LoopThread
    sites: dict[str, Site] = field(default_factory=dict)
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: tuple[()] = ()
    socket_folder: str = ""

    @property
    def parties(self) -> dict[str, Handles]:
        """The actors of each party."""
        return {party: site.handles for party, site in self.sites.items()}

    async def status(self, config: Config) -> dict[str, Any]:
        """As of a Ray cluster; there are no nodes, and all actors share one process."""
        return {
            "cluster": ADDRESS,
            "nodes": [],
            "parties": {party: dict(self.described[party]) for party in config.parties},
            "actors": [actor for site in self.sites.values() for actor in await site.status()],
        }

    def explain_loss(self, error: CallError, config: Config) -> str:
        """No actor dies by itself here, so the error says it all."""
        return str(error)

    def close(self) -> None:
        """Stop all sites."""
        with contextlib.suppress(TandemError):
            self.loop.run(self._stop())
        self.loop.close()

    async def _stop(self) -> None:
        await asyncio.gather(*(site.stop() for site in self.sites.values()))


def launch(
    config: Config, progress: Progress, actor_classes: ActorClasses | None = None, hosts: object = None
) -> InlineSites:
    """Start every party's site here; see `Tandem.launch`. Raises TandemError; nothing runs then."""
    if hosts is not None:
        raise ConfigError(
            'hosts says where Ray nodes run, but the runtime is "inline", which has none; leave out hosts, or use the '
            'runtime "ray".'
        )
    config = config.resolve(Path.cwd())
    check_files(config, progress=progress)
    deployment = InlineSites(LoopThread())
    try:
        deployment.described = deployment.loop.run(_start(deployment, config, progress, actor_classes))
    except BaseException:
        deployment.close()
        raise
    warn_of_drafter(deployment.described, progress)
    return deployment


async def _start(
    deployment: InlineSites, config: Config, progress: Progress, actor_classes: ActorClasses | None
) -> dict[str, dict[str, Any]]:
    network, loop = MemoryNetwork(), asyncio.get_running_loop()
    for party in config.parties:
        deployment.sites[party] = Site(party, config, network.open, loop, actor_classes)
    return await start_together(deployment.parties, config, progress)
