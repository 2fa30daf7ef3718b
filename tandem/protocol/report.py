"""What a draft queue reports of a session: events for the user, observations for the profiler, counters.

Knows commits after they happened; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan

from tandem.events import EstimateEvent, SessionStatistics, TokenEvent
from tandem.protocol.messages import Estimate, Observation, Observations, Proposal, Verdict
from tandem.protocol.outbox import Send
from tandem.topology import PARTIES, Party

REPORT_STEPS = 4
"""Steps that the profiler hears of at a time: one message a step would wake two actors more for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """One commit, as the queue saw it."""

    verdict: Verdict
    decided_by: Party
    acceptance: dict[
        Party, float
    ]  # expected, by the formula of the draft rule; nan: decided without the peer
    drafts: dict[Party, Proposal | None]  # the pair; None: not seen here
    arrived_s: dict[Party, float]  # when each came to this queue, since the query was opened; nan: not seen
    is_alone: bool
    is_degraded: bool  # alone because the peer, which had been asked, is lost
    is_last: bool
    committed_s: float  # since the query was opened


class SessionReport:
    """Counts and tells of one query."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.counts = SessionStatistics()
        self.rtt_s = nan  # measured since the last commit
        self.bytes_per_s = nan
        self._last_rtt_s = nan
        self._unreported: list[Observation] = []
        self._expected: dict[Party, list[float]] = {party: [] for party in PARTIES}

    @property
    def statistics(self) -> SessionStatistics:
        """Counters so far."""
        return replace(
            self.counts,
            expected_device_acceptance=_mean(self._expected[Party.DEVICE]),
            expected_cloud_acceptance=_mean(self._expected[Party.CLOUD]),
            rtt_s=self._last_rtt_s,
        )

    def count(self, *names: str) -> None:
        """One more of each counter of `SessionStatistics` named."""
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + 1 for name in names})

    def measured(self, rtt_s: float, bytes_per_s: float) -> None:
        """What a frame's header showed; nan: nothing."""
        if rtt_s == rtt_s:
            self.rtt_s = self._last_rtt_s = rtt_s
        if bytes_per_s == bytes_per_s:
            self.bytes_per_s = bytes_per_s
            self.counts = replace(self.counts, bytes_per_s=bytes_per_s)

    def commit(self, seen: CommitRecord) -> tuple[TokenEvent, list[Send]]:
        """One token is committed: the event for the user, and what the profiler is told."""
        verdict = seen.verdict
        accepted = {Party.DEVICE: verdict.device_accepted, Party.CLOUD: verdict.cloud_accepted}
        decode_s = {party: _decode_s(draft) for party, draft in seen.drafts.items()}
        self._count(seen, accepted)
        event = TokenEvent(
            step=verdict.step,
            token=verdict.target,
            text="",
            device_accepted=accepted[Party.DEVICE],
            cloud_accepted=accepted[Party.CLOUD],
            aggregator=seen.decided_by,
            committed_s=seen.committed_s,
            device_decode_s=decode_s[Party.DEVICE],
            cloud_decode_s=decode_s[Party.CLOUD],
            device_arrived_s=seen.arrived_s[Party.DEVICE],
            cloud_arrived_s=seen.arrived_s[Party.CLOUD],
            device_acceptance=seen.acceptance[Party.DEVICE],
            cloud_acceptance=seen.acceptance[Party.CLOUD],
            device_epoch=verdict.device_epoch - (not accepted[Party.DEVICE]),
            cloud_epoch=verdict.cloud_epoch - (not accepted[Party.CLOUD]),
            rtt_s=self._last_rtt_s,
            is_alone=seen.is_alone,
        )
        observation = Observation(
            step=verdict.step,
            aggregator=verdict.next_aggregator,
            device_decode_s=decode_s[Party.DEVICE],
            cloud_decode_s=decode_s[Party.CLOUD],
            device_acceptance=seen.acceptance[Party.DEVICE],
            cloud_acceptance=seen.acceptance[Party.CLOUD],
            rtt_s=self.rtt_s,
            bytes_per_s=self.bytes_per_s,
        )
        self.rtt_s = self.bytes_per_s = nan
        return event, self._observe(observation, seen.is_last)

    def _observe(self, observation: Observation, is_last: bool) -> list[Send]:
        """Tell the profiler: at once of the first step, then of some at a time."""
        self._unreported.append(observation)
        if observation.step > 0 and len(self._unreported) < REPORT_STEPS and not is_last:
            return []
        steps, self._unreported = tuple(self._unreported), []
        return [Send("profiler", Observations(session=self.session, steps=steps))]

    def _count(self, seen: CommitRecord, accepted: dict[Party, bool]) -> None:
        step, counts = seen.verdict.step, self.counts
        for party in PARTIES:
            if seen.acceptance[party] == seen.acceptance[party]:
                self._expected[party].append(seen.acceptance[party])
        self.counts = replace(
            counts,
            num_tokens=step + 1,
            num_device_accepted=counts.num_device_accepted + accepted[Party.DEVICE],
            num_cloud_accepted=counts.num_cloud_accepted + accepted[Party.CLOUD],
            degraded_from=step if seen.is_degraded and counts.degraded_from is None else counts.degraded_from,
            first_token_s=seen.committed_s if step == 0 else counts.first_token_s,
            total_s=seen.committed_s,
        )


def estimate_event(estimate: Estimate) -> EstimateEvent:
    """The scheduler's view, for the user."""
    profile = estimate.profile
    return EstimateEvent(
        step=profile.step,
        aggregator=profile.aggregator,
        chosen=estimate.chosen,
        delta_z_s=estimate.delta_z_s,
        device_decode_s=profile.device_decode_s,
        cloud_decode_s=profile.cloud_decode_s,
        device_acceptance=profile.device_acceptance,
        cloud_acceptance=profile.cloud_acceptance,
        rtt_s=profile.rtt_s,
        rtt_average_s=profile.rtt_average_s,
        bytes_per_s=profile.bytes_per_s,
        assumed=estimate.assumed,
    )


def _decode_s(draft: Proposal | None) -> float:
    return nan if draft is None else draft.decode_us / 1e6


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else nan
