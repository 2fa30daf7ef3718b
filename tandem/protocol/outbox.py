"""What a state machine returns: messages with receivers named by role, for a driver to deliver.

Knows nothing of addresses or delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ActorKind = Literal[
    "retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler", "peer", "client"
]
"""An actor of the own side, the peer's draft queue, or whoever asked the question."""

ROLES: tuple[ActorKind, ...] = ("retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler")
"""The actors of one side."""


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to `to`."""

    to: ActorKind
    message: Any  # a tandem.protocol.messages.Message, or a tandem.events.Told where `to` is "client"
