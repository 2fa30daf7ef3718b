"""The sessions of one party's decoder, and which of them compute next."""

from __future__ import annotations

from typing import Any

from tandem.modes.spec import SessionSpec
from tandem.protocol.decoding import DecodingSession, Job
from tandem.protocol.drafting import DraftingSession
from tandem.protocol.following import FollowingSession
from tandem.protocol.outbox import Send
from tandem.protocol.sessions import SessionTable


class DraftingTable(SessionTable[DecodingSession]):
    """The decoder of one party: plans for all its sessions, one job of each at a time. After `End` the driver frees the
    session in the engine."""

    def _open(self, spec: SessionSpec) -> DecodingSession:
        make = DraftingSession if spec.roles.role(self.party).drafts else FollowingSession
        return make(spec, self.party)

    def _begin(self, session: DecodingSession) -> list[Send]:
        return session.begin()

    def _begin_again(self, session: DecodingSession) -> list[Send]:
        return session.begin_again()

    def _act(self, session: DecodingSession, message: Any) -> list[Send]:
        return session.receive(message)

    def next_job(self) -> Job | None:
        """The next thing to compute."""
        return next(iter(self.next_jobs(1)), None)

    def next_jobs(self, max_rows: int) -> list[Job]:
        """The next job of every session that has one of the first's kind, up to about `max_rows` rows in all.

        Sessions take turns: those served go to the end, those left out keep their place.
        """
        jobs: list[Job] = []
        num_rows = 0
        for session in self.sessions.values():
            job = session.next_job() if num_rows < max_rows else None
            if job is not None and (not jobs or type(job) is type(jobs[0])):
                jobs.append(job)
                num_rows += job.num_rows
        for job in jobs:
            self.sessions[job.session] = self.sessions.pop(job.session)
        return jobs
