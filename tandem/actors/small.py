"""Aggregator, profiler and scheduler: actors that are nothing but their host class on the data plane.

DraftQueue --Pair--> Aggregator --Decision--> DraftQueue
DraftQueue --Observations--> Profiler --Profile--> Scheduler --Placement--> Aggregator, --Estimate--> DraftQueue
"""

from __future__ import annotations

from typing import Any, ClassVar

from tandem.actors.base import Runtime, SideActor
from tandem.aggregation.codec import make_codec
from tandem.errors import TandemError
from tandem.messages import DecoderFailed, Lone, Pair
from tandem.protocol.hosts import AggregatorHost, ProfilerHost, SchedulerHost
from tandem.protocol.sends import Role, Send
from tandem.side import Side


class AggregatorActor(SideActor):
    """Verifies pairs of drafts."""

    role: ClassVar[Role] = "aggregator"

    def __init__(self, side: Side, runtime: Runtime) -> None:
        super().__init__(side, runtime)
        codec = runtime.config.codec
        self.host = AggregatorHost(side, make_codec(codec.name, p=codec.p))

    def handle(self, message: Any, source: str) -> list[Send]:
        """Decide."""
        return self.host.receive(message)

    def on_error(self, message: Any, error: TandemError) -> None:
        """A draft that cannot be read ends its session, not the actor."""
        super().on_error(message, error)
        if isinstance(message, Pair | Lone):
            self.dispatch([Send("draft_queue", DecoderFailed(session=message.session, reason=str(error)))])


class ProfilerActor(SideActor):
    """Keeps moving averages of what commits show."""

    role: ClassVar[Role] = "profiler"
    dials: ClassVar[tuple[Role, ...]] = ("scheduler", "decoder")

    def __init__(self, side: Side, runtime: Runtime) -> None:
        super().__init__(side, runtime)
        self.host = ProfilerHost(side)

    def handle(self, message: Any, source: str) -> list[Send]:
        """Take an observation in."""
        return self.host.receive(message)


class SchedulerActor(SideActor):
    """Decides who aggregates."""

    role: ClassVar[Role] = "scheduler"
    dials: ClassVar[tuple[Role, ...]] = ("aggregator",)

    def __init__(self, side: Side, runtime: Runtime) -> None:
        super().__init__(side, runtime)
        self.host = SchedulerHost(side)

    def handle(self, message: Any, source: str) -> list[Send]:
        """Take a profile in."""
        return self.host.receive(message)
