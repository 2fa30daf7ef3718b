"""Several actors of one party in one process.

caller --call(role, method)--> SharedProcess --method--> one of its actors
actor --message, as an object--> another actor of the process
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.actors.base import Runtime, SiteActor
from tandem.protocol.outbox import ActorKind
from tandem.transport.memory import Exchange


class SharedProcess:
    """The actors of one process, on one event loop: the same classes that have a process each elsewhere."""

    def __init__(self, party: str, runtime: Runtime, classes: Mapping[ActorKind, type[SiteActor]]) -> None:
        exchange = Exchange()
        self.actors = {role: actor_class(party, runtime) for role, actor_class in classes.items()}
        for actor in self.actors.values():
            actor.join(exchange)

    async def call(self, role: ActorKind, method: str, *arguments: Any) -> Any:
        """What a method of one of the actors returns."""
        return await getattr(self.actors[role], method)(*arguments)
