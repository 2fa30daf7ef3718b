"""The reports of a coordinator on a session: events and citations for the client, measurements, counters.

A report learns of a commit after it happened and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan, nan
from typing import TypeVar

from tandem.aggregation.rules import Step
from tandem.citations import Citation, Part, cite
from tandem.events import (
    CitationEvent,
    ClientEvent,
    EstimateEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
)
from tandem.messages import (
    Attribution,
    DecoderReady,
    Estimate,
    Observation,
    Observations,
    Sources,
    Verdict,
    VerifyResult,
)
from tandem.modes import SessionSpec
from tandem.modes.mode import Mode
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send
from tandem.topology import PARTIES, Party


class CitedTokens:
    """The tokens of a session that await what the home's decoder says of them, and what it said ahead of the commit.

    Invariants: what is said of a prefix first counts, whatever a restarted decoder computes again. A token is cited
    once, and a commit never waits. Shares are a function of the prefix and the votes, never of who came first.
    """

    def __init__(self, rules: Mode, party: str) -> None:
        """rules: of the query. party: this one; elsewhere than at home nothing is cited."""
        self._rules, self._party = rules, party
        self._ids: tuple[str, ...] | None = None  # of the documents that shares are of, once they are known
        self._always: tuple[float, ...] = ()  # `Attribution.masses` of every token
        self._ahead: dict[bytes, Attribution] = {}  # by digest: of tokens that are not committed
        self._awaited: dict[bytes, tuple[int, Part]] = {}  # by digest: step of a committed token
        # a restarted decoder found other documents: shares of two lists cannot be told apart
        self._has_changed = False

    def begin(self, ready: DecoderReady) -> None:
        """The home's documents are known."""
        self._has_changed |= self._ids not in (None, ready.sources.ids)
        self._ids, self._always = ready.sources.ids, ready.masses

    def take(self, attributions: Sequence[Attribution], num_committed: int) -> list[CitationEvent]:
        """Take the decoder's attributions of some tokens: the shares of those that are committed."""
        events = []
        for each in attributions:
            if (awaited := self._awaited.pop(each.digest, None)) is not None and not self._has_changed:
                step, part = awaited
                events.append(CitationEvent(step=step, citation=cite(each.masses, part)))
            elif each.step >= num_committed:
                self._ahead.setdefault(each.digest, each)
        return events

    def commit(
        self, prefix: Prefix, verdict: Verdict, position: int, result: VerifyResult | None
    ) -> Citation | None:
        """The shares of the last token of the committed `prefix`; None: not known, or not yet.

        It stands at this position of a verdict, which was made of the own `result`, or elsewhere.
        """
        step, digest = len(prefix) - 1, prefix.digest
        attribution = self._ahead.get(digest)
        self._ahead = {key: each for key, each in self._ahead.items() if each.step > step}
        part = self._find_part(verdict, position, result)
        if part is None or self._ids == () or self._has_changed:
            return None
        if part == Part(0.0):
            return Citation(documents=(), others=1.0)
        masses = self._always if attribution is None else attribution.masses
        if not masses:
            self._awaited[digest] = step, part
            return None
        return cite(masses, part)

    def _find_part(self, verdict: Verdict, position: int, result: VerifyResult | None) -> Part | None:
        """How much of a token the home said; None: it has no part in the answer, no documents, or is another party."""
        topology = self._rules.roles.topology
        if self._party != topology.home or not self._rules.spec.num_documents(self._party):
            return None
        if result is None:
            return self._rules.part_elsewhere(verdict.accepted_at(position))
        if result.own:
            return Part(result.own[position])
        return Part(float(result.voters == (topology.index(self._party),)))


T = TypeVar("T")

MAX_SOURCES = 64
"""How often a party's documents are passed on: it names them again after a restart and after each Resync."""
REPORT_STEPS = 4
"""Steps per message to the profiler: one message per step would wake two more actors for every token."""


class Provisional:
    """The tokens that are shown: the committed ones, then drafts that continue them."""

    def __init__(self, session: int) -> None:
        self.shown = Prefix(session)

    def extend(self, own: Mapping[bytes, Step], now_s: float) -> list[Event]:
        """Show the drafts that have become the next ones."""
        events: list[Event] = []
        while (entry := own.get(self.shown.digest)) is not None and entry.token is not None:
            events.append(
                ProvisionalEvent(step=len(self.shown), token=entry.token, text="", shown_at_s=now_s)
            )
            self.shown.append(entry.token)
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


class Reporter:
    """Everything that leaves the session for the client or the profiler.

    Invariants: events are emitted at the home party only; the tokens shown are always the committed ones followed by
    one chain of provisional ones.
    """

    def __init__(self, spec: SessionSpec, party: str) -> None:
        self.own_sources: Sources | None = None  # once they are known
        self.cited = CitedTokens(spec.rules, party)
        self._spec, self._party = spec, party
        self.lost_elsewhere: frozenset[str] = frozenset()  # parties without which the last verdict was made
        self._num_sources: Counter[str] = Counter()  # messages that named documents, by party
        self._counts = SessionStatistics()
        self._fresh = (nan, nan)  # round trip and bandwidth that were measured since the last commit
        self._last_rtt_s = nan
        self._unreported: list[Observation] = []
        self._expected: dict[str, list[float]] = {drafter: [] for drafter in spec.roles.drafters}
        self._shown = Provisional(spec.session) if spec.show_drafts and self.is_home else None

    @property
    def is_home(self) -> bool:
        """Whether the client listens at this party."""
        return self._party == self._spec.home

    def emit(self, *events: Event) -> list[Send]:
        """Events for the client, which listens at the home party."""
        if not self.is_home:
            return []
        return [Send("client", ClientEvent(self._spec.session, event)) for event in events]

    # ---- documents ---------------------------------------------------------------------------------------------

    def note_sources(self, ready: DecoderReady) -> Sources | None:
        """This party's documents, for the client here or at the peer; None: they were noted before, though a decoder
        that began again may have taken another time for them."""
        before, self.own_sources = self.own_sources, ready.sources
        self.cited.begin(ready)
        is_new = before is None or (before.ids, before.notes) != (ready.sources.ids, ready.sources.notes)
        return ready.sources if is_new else None

    def emit_sources(self, party: str, sources: Sources, scores: Sequence[float | None] = ()) -> list[Send]:
        """A party's documents, for this party's client. scores: of its own ones alone."""
        scores = scores or [None] * len(sources.ids)
        event = SourcesEvent(
            party=party,
            sources=tuple(
                Source(party=party, id=key, score=score)
                for key, score in zip(sources.ids, scores, strict=True)
            ),
            retrieve_s=sources.retrieve_us / 1e6,
            prefill_s=sources.prefill_us / 1e6,
            notes=sources.notes,
            marks=sources.marks.hex(),
        )
        return self.emit(event)

    def may_pass_on(self, party: str) -> bool:
        """Whether one more message that names documents of `party` is passed on."""
        self._num_sources[party] += 1
        return self._num_sources[party] <= MAX_SOURCES

    # ---- counters ----------------------------------------------------------------------------------------------

    def statistics(self, num_resent_frames: int) -> SessionStatistics:
        """Counters so far."""
        means = [sum(values) / len(values) if values else nan for values in self._expected.values()]
        device, cloud = self._as_pair(means, nan)
        return replace(
            self._counts,
            num_resent_frames=num_resent_frames,
            expected_device_acceptance=device,
            expected_cloud_acceptance=cloud,
            rtt_s=self._last_rtt_s,
        )

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter of `SessionStatistics`."""
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + number})

    def measure(self, rtt_s: float, bytes_per_s: float) -> None:
        """Take in what a frame's header showed; nan: nothing."""
        if not isnan(rtt_s):
            self._fresh, self._last_rtt_s = (rtt_s, self._fresh[1]), rtt_s
        if not isnan(bytes_per_s):
            self._fresh = (self._fresh[0], bytes_per_s)
            self._counts = replace(self._counts, bytes_per_s=bytes_per_s)

    def cite(self, attributions: Sequence[Attribution]) -> list[Send]:
        """The home's decoder attributes tokens to documents: for the client where they are committed."""
        return self.emit(*self.cited.take(attributions, self._counts.num_tokens))

    # ---- who is missing ----------------------------------------------------------------------------------------

    def note_losses(self, verdict: Verdict, step: int) -> list[Send]:
        """Note, at a home whose decider has others behind it, who is missing from `step` on, and who is back."""
        if not any(tail.last_voters for tail in verdict.tail):
            return []
        topology, before = self._spec.roles.topology, self.lost_elsewhere
        self.lost_elsewhere = frozenset(map(topology.name, verdict.tail[0].lost))
        changed = [name for name in topology.parties if name in before ^ self.lost_elsewhere]
        return self.emit(
            *(PeerEvent(step=step, is_alone=name in self.lost_elsewhere, party=name) for name in changed)
        )

    # ---- commits -----------------------------------------------------------------------------------------------

    def commit(
        self,
        verdict: Verdict,
        position: int,
        *,
        result: VerifyResult | None,
        prefix: Prefix,
        decided_by: str,
        drafts: Sequence[Step | None],
        epochs: Sequence[int],
        is_degraded: bool,
        is_late: bool,
        is_last: bool,
        shares: Mapping[str, float],
        committed_s: float,
        last_voter: str | None,
    ) -> list[Send]:
        """The token at this position of a verdict is committed: for the client, and for the profiler.

        result: of the own aggregator, that it was made of; None: it was decided elsewhere. prefix: ends with the token.
        drafts, epochs: of each drafter, as the step was decided; None: not seen here. is_degraded: a peer is lost.
        is_late: its vote was waited for no longer, which counts where none is lost. shares: how much each vote counted;
        empty: it was decided elsewhere. committed_s: since the query was opened. last_voter: whose vote came last, of
        several.
        """
        step, token = verdict.step + position, verdict.tokens[position]
        accepted = verdict.accepted_at(position)
        acceptance = expected_acceptance(verdict, result, len(drafts))
        is_degraded = is_degraded or bool(self.lost_elsewhere)
        is_late = is_late and not is_degraded
        for values, expected in zip(self._expected.values(), acceptance, strict=True):
            if not isnan(expected):
                values.append(expected)
        device_accepted, cloud_accepted = self._as_pair(accepted, False)
        counts = self._counts
        self._counts = replace(
            counts,
            num_tokens=step + 1,
            num_device_accepted=counts.num_device_accepted + device_accepted,
            num_cloud_accepted=counts.num_cloud_accepted + cloud_accepted,
            num_late_votes=counts.num_late_votes + is_late,
            degraded_from=step if is_degraded and counts.degraded_from is None else counts.degraded_from,
            first_token_s=committed_s if step == 0 else counts.first_token_s,
            total_s=committed_s,
        )
        decode_s = tuple(nan if draft is None else draft.decode_us / 1e6 for draft in drafts)
        arrived_s = tuple(nan if draft is None else draft.arrived_s for draft in drafts)
        device_decode_s, cloud_decode_s = self._as_pair(decode_s, nan)
        device_arrived_s, cloud_arrived_s = self._as_pair(arrived_s, nan)
        device_acceptance, cloud_acceptance = self._as_pair(acceptance, nan)
        device_epoch, cloud_epoch = self._as_pair(epochs, 0)
        event = TokenEvent(
            step=step,
            token=token,
            text="",
            device_accepted=device_accepted,
            cloud_accepted=cloud_accepted,
            aggregator=decided_by,
            committed_s=committed_s,
            device_decode_s=device_decode_s,
            cloud_decode_s=cloud_decode_s,
            device_arrived_s=device_arrived_s,
            cloud_arrived_s=cloud_arrived_s,
            device_acceptance=device_acceptance,
            cloud_acceptance=cloud_acceptance,
            device_epoch=device_epoch,
            cloud_epoch=cloud_epoch,
            rtt_s=self._last_rtt_s,
            is_alone=is_degraded or is_late or len(self._spec.parties) == 1,
            shares=dict(shares),
            log_weights={
                drafter: draft.log_weight
                for drafter, draft in zip(self._spec.roles.drafters, drafts, strict=True)
                if draft is not None and draft.log_weight is not None and isfinite(draft.log_weight)
            },
            last_voter=last_voter,
            citation=self.cited.commit(prefix, verdict, position, result),
            most=result.most[position] if result is not None and result.most else nan,
        ).with_tail(verdict.tail_at(position))
        observation = Observation(
            step=step,
            aggregator=verdict.next_decider,
            decode_s=decode_s,
            acceptance=acceptance,
            rtt_s=self._fresh[0],
            bytes_per_s=self._fresh[1],
        )
        self._fresh = (nan, nan)
        return [*self.confirm(step, token), *self.emit(event), *self._observe(observation, is_last)]

    def _observe(self, observation: Observation, is_last: bool) -> list[Send]:
        """To the profiler: the first step at once, then a few at a time."""
        if not self._spec.rules.is_placed:  # there is nobody to place
            return []
        self._unreported.append(observation)
        if observation.step > 0 and len(self._unreported) < REPORT_STEPS and not is_last:
            return []
        steps, self._unreported = tuple(self._unreported), []
        return [Send("profiler", Observations(session=self._spec.session, steps=steps))]

    def _as_pair(self, values: Sequence[T], default: T) -> tuple[T, T]:
        """Values of each drafter for the two fields of an event: that of the first, and the cloud's."""
        named = dict(zip(self._spec.roles.drafters, values, strict=True))
        cloud = named.pop(Party.CLOUD, default)
        return next(iter(named.values()), default), cloud

    # ---- provisional tokens ------------------------------------------------------------------------------------

    def show(self, own: Mapping[bytes, Step], now_s: float) -> list[Send]:
        """Emit the proposals that follow what is shown. own: of this party or its drafter, those held, by digest."""
        return [] if self._shown is None else self.emit(*self._shown.extend(own, now_s))

    def confirm(self, step: int, token: int) -> list[Send]:
        """Void the provisional tokens that a commit contradicts."""
        return [] if self._shown is None else self.emit(*self._shown.commit(step, token))

    def void(self, step: int) -> list[Send]:
        """Void whatever is shown from `step` on."""
        return [] if self._shown is None else self.emit(*self._shown.retract(step))


def expected_acceptance(
    verdict: Verdict, result: VerifyResult | None, num_drafters: int
) -> tuple[float, ...]:
    """Of a step by each drafter: of the own result, or as the peer's verdict says; nan where it says nothing."""
    if result is not None:
        return result.acceptance
    return tuple(share / 127 for share in verdict.acceptance) or (nan,) * num_drafters


def make_estimate_event(estimate: Estimate) -> EstimateEvent:
    """The scheduler's view, for the client."""
    profile = estimate.profile
    device_decode_s, cloud_decode_s = profile.decode_s
    device_acceptance, cloud_acceptance = profile.acceptance
    return EstimateEvent(
        step=profile.step,
        aggregator=PARTIES[profile.aggregator],
        chosen=PARTIES[estimate.chosen],
        delta_z_s=estimate.delta_z_s,
        device_decode_s=device_decode_s,
        cloud_decode_s=cloud_decode_s,
        device_acceptance=device_acceptance,
        cloud_acceptance=cloud_acceptance,
        rtt_s=profile.rtt_s,
        rtt_average_s=profile.rtt_average_s,
        bytes_per_s=profile.bytes_per_s,
        assumed=estimate.assumed,
    )
