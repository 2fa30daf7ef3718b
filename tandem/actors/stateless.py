"""Aggregator, profiler and scheduler: actors that are nothing but their host class on the data plane.

DraftQueue --Pair--> Aggregator --Decision--> DraftQueue
DraftQueue --Observations--> Profiler --Profile--> Scheduler --Placement--> Aggregator, --Estimate--> DraftQueue
"""

from __future__ import annotations

from typing import Any, ClassVar

from tandem.actors.base import Runtime, SiteActor
from tandem.codecs import codec_of
from tandem.errors import TandemError
from tandem.protocol.messages import Ballot, DecoderFailed, SoloBallot
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.session_tables import AggregatingTable, ProfilingTable, SchedulingTable
from tandem.topology import Party


class AggregatorActor(SiteActor):
    """Verifies pairs of drafts."""

    role: ClassVar[ActorKind] = "aggregator"

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.host = AggregatingTable(party, codec_of(runtime.config.codec))

    def handle(self, message: Any, source: str) -> list[Send]:
        """Decide."""
        return self.host.receive(message)

    def on_error(self, message: Any, error: TandemError) -> None:
        """A draft that cannot be read ends its session, not the actor."""
        super().on_error(message, error)
        if isinstance(message, Ballot | SoloBallot):
            self.dispatch([Send("draft_queue", DecoderFailed(session=message.session, reason=str(error)))])


class ProfilerActor(SiteActor):
    """Keeps moving averages of what commits show."""

    role: ClassVar[ActorKind] = "profiler"
    dials: ClassVar[tuple[ActorKind, ...]] = ("scheduler", "decoder")

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.host = ProfilingTable(party)

    def handle(self, message: Any, source: str) -> list[Send]:
        """Take an observation in."""
        return self.host.receive(message)


class SchedulerActor(SiteActor):
    """Decides who aggregates."""

    role: ClassVar[ActorKind] = "scheduler"
    dials: ClassVar[tuple[ActorKind, ...]] = ("aggregator",)

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.host = SchedulingTable(party)

    def handle(self, message: Any, source: str) -> list[Send]:
        """Take a profile in."""
        return self.host.receive(message)
