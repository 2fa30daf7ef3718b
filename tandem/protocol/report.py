"""What a draft queue reports of a session: events for the user, observations for the profiler, counters.

Knows commits after they happened; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan

from tandem.events import EstimateEvent, SessionStatistics, TokenEvent
from tandem.messages import Draft, Estimate, Observation, Observations, Verdict
from tandem.protocol.sends import Send
from tandem.side import SIDES, Side

REPORT_STEPS = 4
"""Steps that the profiler hears of at a time: one message a step would wake two actors more for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One commit, as the queue saw it."""

    verdict: Verdict
    decided_by: Side
    acceptance: dict[Side, float]  # expected, by the formula of the draft rule; nan: decided without the peer
    drafts: dict[Side, Draft | None]  # the pair; None: not seen here
    arrived_s: dict[Side, float]  # when each came to this queue, since the query was opened; nan: not seen
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
        self._expected: dict[Side, list[float]] = {side: [] for side in SIDES}

    @property
    def statistics(self) -> SessionStatistics:
        """Counters so far."""
        return replace(
            self.counts,
            expected_device_acceptance=_mean(self._expected[Side.DEVICE]),
            expected_cloud_acceptance=_mean(self._expected[Side.CLOUD]),
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

    def commit(self, seen: Committed) -> tuple[TokenEvent, list[Send]]:
        """One token is committed: the event for the user, and what the profiler is told."""
        verdict = seen.verdict
        accepted = {Side.DEVICE: verdict.device_accepted, Side.CLOUD: verdict.cloud_accepted}
        decode_s = {side: _decode_s(draft) for side, draft in seen.drafts.items()}
        self._count(seen, accepted)
        event = TokenEvent(
            step=verdict.step,
            token=verdict.target,
            text="",
            device_accepted=accepted[Side.DEVICE],
            cloud_accepted=accepted[Side.CLOUD],
            aggregator=seen.decided_by,
            committed_s=seen.committed_s,
            device_decode_s=decode_s[Side.DEVICE],
            cloud_decode_s=decode_s[Side.CLOUD],
            device_arrived_s=seen.arrived_s[Side.DEVICE],
            cloud_arrived_s=seen.arrived_s[Side.CLOUD],
            device_acceptance=seen.acceptance[Side.DEVICE],
            cloud_acceptance=seen.acceptance[Side.CLOUD],
            device_epoch=verdict.device_epoch - (not accepted[Side.DEVICE]),
            cloud_epoch=verdict.cloud_epoch - (not accepted[Side.CLOUD]),
            rtt_s=self._last_rtt_s,
            is_alone=seen.is_alone,
        )
        observation = Observation(
            step=verdict.step,
            aggregator=verdict.next_aggregator,
            device_decode_s=decode_s[Side.DEVICE],
            cloud_decode_s=decode_s[Side.CLOUD],
            device_acceptance=seen.acceptance[Side.DEVICE],
            cloud_acceptance=seen.acceptance[Side.CLOUD],
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

    def _count(self, seen: Committed, accepted: dict[Side, bool]) -> None:
        step, counts = seen.verdict.step, self.counts
        for side in SIDES:
            if seen.acceptance[side] == seen.acceptance[side]:
                self._expected[side].append(seen.acceptance[side])
        self.counts = replace(
            counts,
            num_tokens=step + 1,
            num_device_accepted=counts.num_device_accepted + accepted[Side.DEVICE],
            num_cloud_accepted=counts.num_cloud_accepted + accepted[Side.CLOUD],
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


def _decode_s(draft: Draft | None) -> float:
    return nan if draft is None else draft.decode_us / 1e6


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else nan
