"""A site in one process: all actors of one party on one event loop, without Ray.

    whoever asks --handles--> actors --objects--> actors of the same site
    draft queue --frames--> link --> draft queues of other sites

The classes are those that have a process each on a Ray cluster. Between them messages are handed over as they are; only
what crosses to another site is encoded. Each model and each index works in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import time

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.handles import Handles, LocalActor
from tandem.actors.retriever import RetrieverActor
from tandem.actors.shared import SharedProcess
from tandem.actors.stateless import AggregatorActor, ProfilerActor, SchedulerActor
from tandem.config.parties import check_one_decoder
from tandem.config.schema import Config
from tandem.protocol.outbox import ROLES, ActorKind
from tandem.sites.deployment import ActorClasses
from tandem.sites.status import ActorState, to_dict
from tandem.sites.wiring import call_all
from tandem.transport.port import OpenLink

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


class Site:
    """The actors of one party in this process. `wiring.start_actors({site.party: site.handles}, ...)` starts them.

    Its draft queue reaches its peers through the link that it is given, over which nothing but frames can come: the
    messages of a LinkFrame, checked as they are decoded. Neither end can call the other's actors.
    """

    def __init__(
        self,
        party: str,
        config: Config,
        open_link: OpenLink,
        loop: asyncio.AbstractEventLoop,
        actor_classes: ActorClasses | None = None,
    ) -> None:
        """open_link: makes the draft queue's end of the links to its peers. loop: where the actors live; it must run.

        actor_classes: classes to use instead of those in ACTOR_CLASSES, by kind of actor. Raises ConfigError where the
        settings ask for several decoders.
        """
        check_one_decoder({party: config.party(party)})
        self.party = party
        classes: dict[ActorKind, type] = {**ACTOR_CLASSES, **(actor_classes or {})}
        runtime = Runtime(
            secret=b"", directory="", config=config.with_names().seen_by(party), open_link=open_link
        )
        shared = SharedProcess(party, runtime, {role: classes[role] for role in ROLES})
        self.handles: Handles = {role: LocalActor(shared.actors[role], loop) for role in ROLES}
        self._started_s = time.time()

    async def status(self) -> list[dict[str, object]]:
        """Every actor, as `tandem status` shows it."""
        reports = await call_all({self.party: self.handles}, "statistics")
        return [
            to_dict(
                ActorState(
                    name=report.name,
                    state="alive",
                    process="inline",  # one for all sites
                    pid=os.getpid(),
                    started_s=self._started_s,
                ),
                report,
            )
            for report in reports
        ]

    async def stop(self) -> None:
        """Stop all tasks and links; the threads end with the work that they are at."""
        await call_all({self.party: self.handles}, "close")
