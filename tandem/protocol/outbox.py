"""The output of a state machine: messages with receivers named by role, for a driver to deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ActorKind = Literal[
    "retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler", "peer", "client"
]
"""An actor of the own site, a peer's coordinator, or the client."""

ROLES: tuple[ActorKind, ...] = ("retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler")
"""The actors of one site."""


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to `to`."""

    to: ActorKind
    message: Any  # a tandem.messages.Message, or a tandem.events.ClientEvent where `to` is "client"
    peer: str = ""  # where `to` is "peer": which one
