"""Aggregator, profiler and scheduler: actors that only put their session table on the data plane.

DraftQueue --Ballot--> Aggregator --VerifyResult--> DraftQueue
DraftQueue --Observations--> Profiler --Profile--> Scheduler --Placement--> Aggregator, --Estimate--> DraftQueue
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from tandem.actors.base import Runtime, SiteActor, report_failure
from tandem.codecs import codec_of
from tandem.errors import TandemError
from tandem.messages import Ballot
from tandem.protocol.aggregating import AggregatingTable
from tandem.protocol.estimating import ProfilingTable, SchedulingTable
from tandem.protocol.outbox import ActorKind, Send
from tandem.scheduler.policies import load_policy
from tandem.transport.port import Endpoint


class AggregatorActor(SiteActor):
    """Decides steps from both sides' drafts."""

    role: ClassVar[ActorKind] = "aggregator"

    @cached_property
    def table(self) -> AggregatingTable:
        """Its sessions. Raises ConfigError if the codec cannot be loaded."""
        return AggregatingTable(self.party, codec_of(self.config.codec, self.place))

    async def bind(self) -> Endpoint:
        """Open the data plane once codec and policy are loaded. Raises ConfigError."""
        load_policy(self.config.decoding.placement, self.config.scheduler.parameters, self.place)
        assert self.table is not None
        return await super().bind()

    def handle(self, message: Any, source: str) -> list[Send]:
        """Decide a step, or take the scheduler's advice."""
        return self.table.receive(message)

    def on_error(self, message: Any, error: TandemError) -> None:
        """A draft that cannot be decoded ends its session, not the actor."""
        super().on_error(message, error)
        if isinstance(message, Ballot):
            failed = report_failure(message.session, error)
            self.dispatch([Send("draft_queue", failed)])


class ProfilerActor(SiteActor):
    """Keeps moving averages of decode times, round trips and acceptance."""

    role: ClassVar[ActorKind] = "profiler"
    dials: ClassVar[tuple[ActorKind, ...]] = ("scheduler", "decoder")

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table = ProfilingTable(party)

    def handle(self, message: Any, source: str) -> list[Send]:
        """Update the averages."""
        return self.table.receive(message)


class SchedulerActor(SiteActor):
    """Advises which side should aggregate."""

    role: ClassVar[ActorKind] = "scheduler"
    dials: ClassVar[tuple[ActorKind, ...]] = ("aggregator",)

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table = SchedulingTable(party)

    async def bind(self) -> Endpoint:
        """Open the data plane once the policy is loaded. Raises ConfigError."""
        load_policy(self.config.decoding.placement, self.config.scheduler.parameters, self.place)
        return await super().bind()

    def handle(self, message: Any, source: str) -> list[Send]:
        """Turn a profile into advice."""
        return self.table.receive(message)
