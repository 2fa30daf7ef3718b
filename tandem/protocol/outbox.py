"""The output of a state machine: messages with receivers named by role, for a driver to deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

ActorKind = Literal[
    "retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler", "peer", "client"
]
"""An actor of the own site, a peer's coordinator, or the client."""

ROLES: tuple[ActorKind, ...] = ("retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler")
"""The actors of one site."""


def kind_of(role: str) -> ActorKind:
    """The kind of an actor by its role in its party: further ones of a kind are numbered, as "decoder-1"."""
    return cast("ActorKind", role.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to `to`."""

    to: ActorKind
    message: Any  # a tandem.messages.Message, or a tandem.events.ClientEvent where `to` is "client"
    peer: str = ""  # where `to` is "peer": which one
