"""The sessions of a profiler and of a scheduler: placement in mode dual, lengths of proposals in mode speculative."""

from __future__ import annotations

from typing import Any

from tandem.messages import Observations, Profile, RoundProfile, Rounds
from tandem.modes.spec import SessionSpec
from tandem.protocol.lengths import LengthSession, RoundProfilingSession
from tandem.protocol.outbox import Send
from tandem.protocol.profiling import ProfilingSession
from tandem.protocol.scheduling import SchedulingSession
from tandem.protocol.sessions import SessionTable, misdirected
from tandem.topology import Party


class ProfilingTable(SessionTable[ProfilingSession | RoundProfilingSession]):
    """The profiler of one party. A query begins with what the last one of its kind learned."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self._latest: ProfilingSession | None = None
        self._latest_rounds: RoundProfilingSession | None = None

    def _open(self, spec: SessionSpec) -> ProfilingSession | RoundProfilingSession:
        if spec.rules.adapts_lengths(self.party):
            self._latest_rounds = RoundProfilingSession(spec, self._latest_rounds)
            return self._latest_rounds
        self._latest = ProfilingSession(spec, Party(self.party), self._latest)
        return self._latest

    def _begin(self, session: ProfilingSession | RoundProfilingSession) -> list[Send]:
        return session.begin()

    def _act(self, session: ProfilingSession | RoundProfilingSession, message: Any) -> list[Send]:
        match session, message:
            case ProfilingSession(), Observations():
                return session.observe(*message.steps)
            case RoundProfilingSession(), Rounds():
                return session.observe(*message.rounds)
            case _:
                raise misdirected(message, "a profiler")


class SchedulingTable(SessionTable[SchedulingSession | LengthSession]):
    """The scheduler of one party."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self._latest_lengths: LengthSession | None = None

    def _open(self, spec: SessionSpec) -> SchedulingSession | LengthSession:
        if spec.rules.adapts_lengths(self.party):
            self._latest_lengths = LengthSession(spec, before=self._latest_lengths)
            return self._latest_lengths
        return SchedulingSession(spec, Party(self.party))

    def _act(self, session: SchedulingSession | LengthSession, message: Any) -> list[Send]:
        match session, message:
            case SchedulingSession(), Profile():
                return session.observe(message)
            case LengthSession(), RoundProfile():
                return session.observe(message)
            case _:
                raise misdirected(message, "a scheduler")
