"""What a coordinator reports of a session: events for the client, observations for the profiler, counters.

It learns of a commit after it happened and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from tandem.events import (
    ClientEvent,
    EstimateEvent,
    Event,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
)
from tandem.protocol.messages import (
    DecoderReady,
    Estimate,
    Observation,
    Observations,
    Proposal,
    Sources,
    Verdict,
    VerifyResult,
)
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.spec import SessionSpec
from tandem.topology import PARTIES, Party

REPORT_STEPS = 4
"""Steps per message to the profiler: one message per step would wake two more actors for every token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """One commit, as the coordinator saw it."""

    verdict: Verdict
    decided_by: Party
    acceptance: dict[
        Party, float
    ]  # expected, by the formula of the draft rule; nan: decided without the peer
    proposals: dict[Party, Proposal | None]  # the ballot; None: not seen here
    arrived_s: dict[Party, float]  # when each arrived here, since the query was opened; nan: not seen
    is_alone: bool  # decided without the peer
    is_degraded: bool  # alone because the peer is lost
    is_last: bool
    committed_s: float  # since the query was opened


class Reporter:
    """Everything that leaves the session for the client or the profiler.

    Invariants: events are emitted at the home party only; the tokens shown are always the committed ones followed by
    one chain of provisional ones.
    """

    def __init__(self, spec: SessionSpec, party: Party) -> None:
        self.own_sources: Sources | None = None  # once they are known
        self._session, self._party = spec.session, party
        self._is_home = party is spec.home
        self._has_profiler = spec.only is None  # a solo session has nobody to place or to wait for
        self._counts = SessionStatistics()
        self._rtt_s = nan  # measured since the last commit
        self._bytes_per_s = nan
        self._last_rtt_s = nan
        self._unreported: list[Observation] = []
        self._expected: dict[Party, list[float]] = {party: [] for party in PARTIES}
        self._shown = Provisional(spec.session) if spec.show_drafts and self._is_home else None

    def emit(self, *events: Event) -> list[Send]:
        """Events for the client, which listens at the home party."""
        if not self._is_home:
            return []
        return [Send("client", ClientEvent(self._session, event)) for event in events]

    # ---- documents ---------------------------------------------------------------------------------------------

    def note_sources(self, ready: DecoderReady) -> Sources | None:
        """This party's documents, for the client at the peer; None: they were noted before."""
        sources = Sources(
            ids=ready.sources, retrieve_us=ready.retrieve_us, prefill_us=ready.prefill_us, notes=ready.notes
        )
        is_new = self.own_sources != sources
        self.own_sources = sources
        return sources if is_new else None

    def emit_own_sources(self, ready: DecoderReady) -> list[Send]:
        """This party's documents, for its own client, with their scores."""
        is_new = self.note_sources(ready) is not None
        return self._emit_sources(self._party, ready.sources, ready, ready.scores) if is_new else []

    def emit_sources(self, party: Party, sources: Sources) -> list[Send]:
        """The peer's documents, for this party's client."""
        return self._emit_sources(party, sources.ids, sources, ())

    def _emit_sources(
        self, party: Party, ids: Sequence[str], times: DecoderReady | Sources, scores: Sequence[float]
    ) -> list[Send]:
        shown: Sequence[float | None] = scores or [None] * len(ids)
        event = SourcesEvent(
            party=party,
            sources=tuple(
                Source(party=party, id=key, score=score) for key, score in zip(ids, shown, strict=True)
            ),
            retrieve_s=times.retrieve_us / 1e6,
            prefill_s=times.prefill_us / 1e6,
            notes=times.notes,
        )
        return self.emit(event)

    # ---- counters ----------------------------------------------------------------------------------------------

    def statistics(self, num_resent_frames: int) -> SessionStatistics:
        """Counters so far."""
        return replace(
            self._counts,
            num_resent_frames=num_resent_frames,
            expected_device_acceptance=_mean(self._expected[Party.DEVICE]),
            expected_cloud_acceptance=_mean(self._expected[Party.CLOUD]),
            rtt_s=self._last_rtt_s,
        )

    def count(self, name: str) -> None:
        """Add one to a counter of `SessionStatistics`."""
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + 1})

    def measure(self, rtt_s: float, bytes_per_s: float) -> None:
        """Take in what a frame's header showed; nan: nothing."""
        if rtt_s == rtt_s:
            self._rtt_s = self._last_rtt_s = rtt_s
        if bytes_per_s == bytes_per_s:
            self._bytes_per_s = bytes_per_s
            self._counts = replace(self._counts, bytes_per_s=bytes_per_s)

    # ---- commits -----------------------------------------------------------------------------------------------

    def commit(self, record: CommitRecord) -> tuple[TokenEvent, list[Send]]:
        """One token is committed: the event for the client, and the message to the profiler."""
        self._count_commit(record)
        verdict = record.verdict
        decode_s = {party: _decode_s(proposal) for party, proposal in record.proposals.items()}
        event = TokenEvent(
            step=verdict.step,
            token=verdict.target,
            text="",
            device_accepted=verdict.device_accepted,
            cloud_accepted=verdict.cloud_accepted,
            aggregator=record.decided_by,
            committed_s=record.committed_s,
            device_decode_s=decode_s[Party.DEVICE],
            cloud_decode_s=decode_s[Party.CLOUD],
            device_arrived_s=record.arrived_s[Party.DEVICE],
            cloud_arrived_s=record.arrived_s[Party.CLOUD],
            device_acceptance=record.acceptance[Party.DEVICE],
            cloud_acceptance=record.acceptance[Party.CLOUD],
            device_epoch=verdict.device_epoch - (not verdict.device_accepted),
            cloud_epoch=verdict.cloud_epoch - (not verdict.cloud_accepted),
            rtt_s=self._last_rtt_s,
            is_alone=record.is_alone,
        )
        observation = Observation(
            step=verdict.step,
            aggregator=verdict.next_aggregator,
            device_decode_s=decode_s[Party.DEVICE],
            cloud_decode_s=decode_s[Party.CLOUD],
            device_acceptance=record.acceptance[Party.DEVICE],
            cloud_acceptance=record.acceptance[Party.CLOUD],
            rtt_s=self._rtt_s,
            bytes_per_s=self._bytes_per_s,
        )
        self._rtt_s = self._bytes_per_s = nan
        return event, self._observe(observation, record.is_last)

    def _observe(self, observation: Observation, is_last: bool) -> list[Send]:
        """To the profiler: the first step at once, then a few at a time."""
        if not self._has_profiler:
            return []
        self._unreported.append(observation)
        if observation.step > 0 and len(self._unreported) < REPORT_STEPS and not is_last:
            return []
        steps, self._unreported = tuple(self._unreported), []
        return [Send("profiler", Observations(session=self._session, steps=steps))]

    def _count_commit(self, record: CommitRecord) -> None:
        verdict, counts = record.verdict, self._counts
        for party in PARTIES:
            if record.acceptance[party] == record.acceptance[party]:
                self._expected[party].append(record.acceptance[party])
        is_first_degraded = record.is_degraded and counts.degraded_from is None
        self._counts = replace(
            counts,
            num_tokens=verdict.step + 1,
            num_device_accepted=counts.num_device_accepted + verdict.device_accepted,
            num_cloud_accepted=counts.num_cloud_accepted + verdict.cloud_accepted,
            degraded_from=verdict.step if is_first_degraded else counts.degraded_from,
            first_token_s=record.committed_s if verdict.step == 0 else counts.first_token_s,
            total_s=record.committed_s,
        )

    # ---- provisional tokens ------------------------------------------------------------------------------------

    def hold(self, proposal: Proposal) -> None:
        """A new proposal of this party."""
        if self._shown is not None:
            self._shown.hold(proposal)

    def show(self, own: Mapping[bytes, Proposal], now_s: float) -> list[Send]:
        """Emit this party's proposals that follow what is shown. own: those held, by digest."""
        return [] if self._shown is None else self.emit(*self._shown.extend(own, now_s))

    def confirm(self, step: int, token: int) -> list[Send]:
        """Void the provisional tokens that a commit contradicts."""
        return [] if self._shown is None else self.emit(*self._shown.commit(step, token))

    def void(self, step: int) -> list[Send]:
        """Void whatever is shown from `step` on."""
        return [] if self._shown is None else self.emit(*self._shown.retract(step))


class Provisional:
    """The tokens that are shown: the committed ones, then drafts that continue them."""

    def __init__(self, session: int) -> None:
        self.shown = Prefix(session)
        self.tokens: dict[bytes, int] = {}  # of own proposals, by the digest of their prefix

    def hold(self, proposal: Proposal) -> None:
        """A new own proposal; the first for a prefix counts, as in the ballot box."""
        self.tokens.setdefault(proposal.digest, proposal.token)

    def extend(self, own: Mapping[bytes, Proposal], now_s: float) -> list[Event]:
        """Show the drafts that have become the next ones."""
        events: list[Event] = []
        self.tokens = {digest: token for digest, token in self.tokens.items() if digest in own}
        while (token := self.tokens.get(self.shown.digest)) is not None:
            events.append(ProvisionalEvent(step=len(self.shown), token=token, text="", shown_at_s=now_s))
            self.shown.append(token)
        return events

    def commit(self, step: int, token: int) -> list[Event]:
        """`token` is committed: retract what contradicts it. Emit the result before the TokenEvent."""
        if len(self.shown) > step and self.shown.tokens[step] == token:
            return []
        events = self.retract(step)
        self.shown.append(token)
        return events

    def retract(self, step: int) -> list[Event]:
        """Whatever is shown from `step` on is void."""
        if len(self.shown) <= step:
            return []
        self.shown.truncate(step)
        return [RetractEvent(step=step)]


def expected_acceptance(verdict: Verdict, result: VerifyResult | None) -> dict[Party, float]:
    """Expected acceptance of a step: of the own result, or as the peer's verdict says."""
    if result is not None:
        return {Party.DEVICE: result.device_acceptance, Party.CLOUD: result.cloud_acceptance}
    return {Party.DEVICE: verdict.device_acceptance / 127, Party.CLOUD: verdict.cloud_acceptance / 127}


def make_estimate_event(estimate: Estimate) -> EstimateEvent:
    """The scheduler's view, for the client."""
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


def _decode_s(proposal: Proposal | None) -> float:
    return nan if proposal is None else proposal.decode_us / 1e6


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else nan
