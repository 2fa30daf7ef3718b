"""What asks a question needs of the parties that run, whether on a Ray cluster or in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tandem.actors.base import SiteActor
from tandem.actors.handles import Handles
from tandem.config.schema import Config
from tandem.errors import CallError
from tandem.protocol.outbox import ActorKind
from tandem.system.loop_thread import LoopThread

Progress = Callable[[str], None]
"""Called with one line for each stage."""


def ignore(line: str) -> None:
    """No progress is wanted."""


ActorClasses = Mapping[ActorKind, type[SiteActor]]
"""Classes of actors by their kind."""


class Deployment(Protocol):
    """All parties' actors, and the event loop on which this process calls them."""

    @property
    def parties(self) -> Mapping[str, Handles]:
        """The actors of each party."""

    @property
    def described(self) -> Mapping[str, dict[str, Any]]:
        """What each party's actors reported of model and index."""

    @property
    def loop(self) -> LoopThread:
        """Where synchronous callers run what they ask for."""

    @property
    def nodes(self) -> Sequence[Any]:
        """Ray nodes that this process started, as NodeInfo."""

    @property
    def socket_folder(self) -> str:
        """Where the actors that this process started keep their sockets; empty if there are none."""

    async def status(self, config: Config) -> dict[str, Any]:
        """Nodes, models, indexes and every actor, as plain values."""

    def explain_loss(self, error: CallError, config: Config) -> str:
        """The sentence for a call that failed; it may block."""

    def close(self) -> None:
        """Stop what was started; what ran before is only left."""
