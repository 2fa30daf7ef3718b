"""One session as a draft queue sees it: pair drafts, commit in order, keep the peer in step.

The queue of each side holds both sides' drafts and the committed prefix. It asks the aggregator to decide a pair,
commits the decision, tells the own decoder and, unless both sides aggregate, the peer. It knows nothing of laws,
tokens' text, Ray or clocks: a draft is opaque bytes that match a prefix or do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from typing import assert_never

from tandem.events import (
    ClientEvent,
    DoneEvent,
    Event,
    PeerEvent,
    PlacementEvent,
    SessionStatistics,
    StopReason,
)
from tandem.protocol.link import Link
from tandem.protocol.messages import (
    Adopt,
    Ballot,
    Begin,
    Cancel,
    Commit,
    DecoderFailed,
    DecoderReady,
    Done,
    End,
    Estimate,
    Heartbeat,
    LinkBody,
    LinkFrame,
    Probe,
    Proposal,
    ProposalReady,
    Rejoin,
    Resync,
    SoloBallot,
    Verdict,
    VerifyResult,
    in_127ths,
)
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.provisional import Provisional
from tandem.protocol.report import CommitRecord, SessionReport, estimate_event
from tandem.protocol.spec import SessionSpec
from tandem.topology import PARTIES, Party

Finished = Callable[[Sequence[int]], StopReason | None]
"""Why an answer of these tokens is complete, or None: end-of-sequence, stop string, length."""

LINGER_S = 10.0
"""Silence of the cloud after which a finished device no longer waits for its Done."""
ABANDONED_S = 60.0
"""Silence of the device after which the cloud frees a session, finished or not: the device may still need it.
Also the longest that a finished device waits for a cloud that lives but does not finish."""
MAX_AHEAD = 256
"""Drafts, verdicts and claims further than this past the committed prefix are not buffered; resends bring them back."""
_CANCELLED = "The query was cancelled."
_DEVICE_FAILED = "The device could not go on."
_FINISHED_ALONE = "The device finished alone."
_LISTENERS: tuple[ActorKind, ...] = ("decoder", "aggregator", "profiler", "scheduler")
_LONE_LISTENERS: tuple[ActorKind, ...] = (
    "decoder",
    "aggregator",
)  # alone there is nobody to place or to wait for


class SessionCoordinator:
    """The state of one query on one side."""

    def __init__(
        self, spec: SessionSpec, party: Party, finished: Finished, now_s: float, *, measures: bool = True
    ) -> None:
        """measures: probe round trip and bandwidth when the peer is first heard."""
        self.spec = spec
        self.party = party
        self.prefix = Prefix(spec.session)
        self.link = Link(spec.session, now_s)
        self.aggregator = spec.first_aggregator
        self.is_lone = spec.only is not None  # this side was asked alone: there is no peer
        self.is_alone = self.is_lone  # this side decides without the peer, be it lost or never asked
        self.reason: StopReason | None = None
        self.error: str | None = None
        self._is_refused = False  # what was asked for is at fault
        self.is_over = False  # nothing is owed to anybody: free it
        self._finished = finished
        self._opened_s = now_s
        self._finished_s = nan
        self._epochs = dict.fromkeys(PARTIES, 0)
        self._drafts: dict[Party, dict[bytes, Proposal]] = {party: {} for party in PARTIES}
        self._arrived_s: dict[tuple[Party, bytes], float] = {}  # since the query was opened
        self._early: dict[int, Verdict] = {}
        self._claims: dict[int, bytes] = {}  # the peer's digests for counts not yet reached here
        self._asked: tuple[int, bytes] | None = None  # generation and prefix of the pair at the aggregator
        self._peer_done: tuple[int, bytes] | None = None  # what the peer's whole answer is: count and digest
        self._has_probed = not measures
        self._incarnation: int | None = None  # cloud: it was restarted and waits for a Resync
        self._adopted = 0  # cloud: the generation whose Resync was adopted last
        self._rejoined: set[int] = set()  # device: incarnations that a Resync has answered
        self._listeners = _LONE_LISTENERS if self.is_lone else _LISTENERS
        self._report = SessionReport(spec.session)
        shows = spec.show_drafts and party is spec.home
        self._provisional = Provisional(spec.session) if shows else None

    # ---- entries: each takes a message and the time, and returns what to send -------------------------------

    def begin(self, now_s: float) -> list[Send]:
        """Tell this side's actors, and the peer, if there is one, that it can be heard."""
        return [*self._begin(*self._listeners), *self._to_peer(Heartbeat(), now_s)]

    def rejoin(self, incarnation: int, now_s: float) -> list[Send]:
        """Begin on a cloud whose draft queue was restarted; `incarnation` is new, 32 bits."""
        self._incarnation = incarnation
        return [
            *self._begin(*self._listeners),
            self.link.send(Rejoin(incarnation=incarnation), self.prefix, now_s),
        ]

    def restarted(self, role: ActorKind) -> list[Send]:
        """An actor of this side was started anew: it is given the session as it stands."""
        if role not in self._listeners:
            return []
        sends = self._begin(role)
        if role == "decoder":
            sends.append(Send("decoder", self._adopt_message()))
        if role == "aggregator":
            self._asked = None
            sends += self._ask()
        return sends

    def receive(
        self,
        message: ProposalReady | VerifyResult | LinkFrame | DecoderReady | DecoderFailed | Estimate,
        now_s: float,
    ) -> list[Send]:
        """Any message of this session."""
        if self.is_over:
            return []
        match message:
            case ProposalReady():
                return self._on_own_draft(message, now_s)
            case VerifyResult():
                return self._on_decision(message, now_s)
            case LinkFrame():
                return [] if self.is_lone else self._on_frame(message, now_s)
            case DecoderReady():
                return []  # the driver turns it into a SourcesEvent: titles are its business
            case DecoderFailed():
                return self.fail(message.reason, now_s, is_refused=message.is_refused)
            case Estimate():  # one of a step that was committed last comes too late to tell
                return [] if self.reason is not None else self._tell(estimate_event(message))
            case _:
                assert_never(message)

    def tick(self, now_s: float) -> list[Send]:
        """Timers: resend, heartbeat, loss of the peer, the end of lingering. Call every 50 ms or so."""
        if self.is_over or self.is_lone:
            return []
        silence_s = self.link.silence_s(now_s)
        if self._is_abandoned(silence_s, now_s):
            return self._free()
        sends = self.link.due(self.prefix, now_s, self._unacknowledged())
        if self._may_go_alone() and silence_s > self.link.loss_limit_s(self.spec.peer_loss_margin_s):
            sends += self._lose_peer(silence_s, now_s)
        return sends

    def reconnected(self, now_s: float) -> list[Send]:
        """A new connection to the peer stands: send at once whatever it has not acknowledged."""
        if self.is_over or self.is_lone:
            return []
        bodies = [*self._unacknowledged(), *self.link.kept_verdicts.values(), *self.link.kept_drafts.values()]
        return self.link.resend(bodies or [Heartbeat()], self.prefix, now_s)

    def cancel(self, now_s: float) -> list[Send]:
        """The user gave the query up: all sides stop and free it."""
        if self.is_over:
            return []
        if self.reason is not None:  # a finished cloud goes on answering a device that may not have finished
            return self._free() if self.party is Party.DEVICE else []
        sends = self._to_peer(Cancel(reason=_CANCELLED), now_s)
        return sends + self._end("cancelled", None, now_s) + self._free()

    def fail(self, reason: str, now_s: float, *, is_refused: bool = False) -> list[Send]:
        """This side cannot go on: say so to the user and to the peer. is_refused: what was asked for is at fault."""
        if self.is_over or self.reason is not None:
            return []
        self._is_refused = is_refused
        sends = self._to_peer(self._failure(reason), now_s)
        return sends + self._end("failed", reason, now_s) + self._free()

    def is_silent(self, now_s: float) -> bool:
        """Whether the peer has been quiet for so long that its connection should be renewed."""
        return (
            not self.is_lone
            and self.reason is None
            and self.link.silence_s(now_s) > self.link.loss_limit_s(0.0)
        )

    @property
    def statistics(self) -> SessionStatistics:
        """Counters so far."""
        return replace(self._report.statistics, num_resent_frames=self.link.num_resent_frames)

    def final_frame(self, now_s: float) -> LinkFrame:
        """What a driver answers for this session once it is freed."""
        body: LinkBody = Done(is_reply=True)
        if self.reason in ("cancelled", "failed"):
            body = Cancel(reason=_CANCELLED) if self.error is None else self._failure(self.error)
        elif self.is_alone:
            body = Cancel(reason=_FINISHED_ALONE)
        frame: LinkFrame = self.link.send(body, self.prefix, now_s).message
        return frame

    # ---- drafts and pairs ------------------------------------------------------------------------------------

    def _on_own_draft(self, drafted: ProposalReady, now_s: float) -> list[Send]:
        draft: Proposal = drafted.draft
        if self.reason is not None or draft.step < len(self.prefix):
            return []
        draft = self._hold(draft, now_s)
        if self._provisional is not None:
            self._provisional.drafted(draft, drafted.token)
        sends = self._show(now_s)
        if self.spec.drafts_travel_from(self.party):
            self.link.keep(draft)
            sends.append(self.link.send(draft, self.prefix, now_s))
        return sends + self._advance(now_s)

    def _on_peer_draft(self, draft: Proposal, now_s: float) -> None:
        if len(self.prefix) <= draft.step < len(self.prefix) + MAX_AHEAD and draft.party is self.party.other:
            self._hold(draft, now_s)

    def _hold(self, draft: Proposal, now_s: float) -> Proposal:
        """One draft per prefix: the first stays, its bytes included, whatever a restarted decoder computes anew."""
        self._arrived_s.setdefault((draft.party, draft.digest), now_s - self._opened_s)
        return self._drafts[draft.party].setdefault(draft.digest, draft)

    def _advance(self, now_s: float) -> list[Send]:
        """Commit the peer's verdicts in step order, then ask for the next decision if it is ours to make."""
        sends: list[Send] = []
        while self.reason is None and (verdict := self._early.pop(len(self.prefix), None)) is not None:
            sends += self._commit(verdict, None, now_s)
        return sends + self._ask()

    def _ask(self) -> list[Send]:
        """Send the next pair to the aggregator. A draft counts iff its digest is the committed prefix's."""
        key = (self.link.view, self.prefix.digest)
        if self.reason is not None or self._asked == key or not self._aggregates():
            return []
        device, cloud = (self._drafts[party].get(self.prefix.digest) for party in PARTIES)
        own = self._drafts[self.party].get(self.prefix.digest)
        message: Ballot | SoloBallot
        if device is not None and cloud is not None:
            message = Ballot(session=self.spec.session, view=key[0], device=device, cloud=cloud)
        elif own is not None and self.is_alone:
            message = SoloBallot(session=self.spec.session, view=key[0], draft=own)
        else:
            return []
        self._asked = key
        return [Send("aggregator", message)]

    def _aggregates(self) -> bool:
        return self.is_alone or self.spec.placement == "mirror" or self.aggregator is self.party

    # ---- decisions and commits -------------------------------------------------------------------------------

    def _on_decision(self, decision: VerifyResult, now_s: float) -> list[Send]:
        if self.reason is not None or self._asked != (decision.view, decision.digest):
            return []
        if decision.digest != self.prefix.digest:
            return []
        verdict = Verdict(
            step=decision.step,
            target=decision.target,
            device_accepted=decision.device_accepted,
            cloud_accepted=decision.cloud_accepted,
            device_epoch=self._epochs[Party.DEVICE] + (not decision.device_accepted),
            cloud_epoch=self._epochs[Party.CLOUD] + (not decision.cloud_accepted),
            device_acceptance=in_127ths(decision.device_acceptance),
            cloud_acceptance=in_127ths(decision.cloud_acceptance),
            next_aggregator=decision.next_aggregator,
        )
        sends = self._commit(verdict, decision, now_s)
        if self.spec.placement != "mirror" and not self.is_alone:
            self.link.keep(verdict)
            sends.insert(0, self.link.send(verdict, self.prefix, now_s))
        return sends + self._advance(now_s)

    def _commit(self, verdict: Verdict, decision: VerifyResult | None, now_s: float) -> list[Send]:
        digest = self.prefix.digest
        drafts = {party: self._drafts[party].get(digest) for party in PARTIES}
        arrived_s = {party: self._arrived_s.get((party, digest), nan) for party in PARTIES}
        accepted = {Party.DEVICE: verdict.device_accepted, Party.CLOUD: verdict.cloud_accepted}
        self.prefix.append(verdict.target)
        for party in PARTIES:
            self._epochs[party] += not accepted[party]
        self._forget_drafts(verdict.step)
        self.link.drop_stale_drafts(self.prefix)
        self.reason = self._finished(self.prefix.tokens)
        # A pair may have been under way when the peer was lost.
        is_alone = self.is_alone and drafts[self.party.other] is None
        event, sends = self._report.commit(
            CommitRecord(
                verdict=verdict,
                decided_by=self.party if decision is not None else self.party.other,
                acceptance=_acceptance(verdict, decision),
                drafts=drafts,
                arrived_s=arrived_s,
                is_alone=is_alone,
                is_degraded=is_alone and not self.is_lone,
                is_last=self.reason is not None,
                committed_s=now_s - self._opened_s,
            )
        )
        if self.is_lone:
            sends = []  # no profiler: see _LONE_LISTENERS
        told = [*self._confirm(verdict), *self._tell(event), *self._show(now_s)]
        sends = [Send("decoder", self._commit_message(verdict)), *told, *sends]
        if verdict.next_aggregator is not self.aggregator:
            self.aggregator = verdict.next_aggregator
            sends += self._tell(PlacementEvent(step=verdict.step + 1, aggregator=self.aggregator))
        if self.reason is not None:
            sends += self._complete(now_s)
        return sends

    def _confirm(self, verdict: Verdict) -> list[Send]:
        """Void the provisional tokens that this verdict contradicts."""
        if self._provisional is None:
            return []
        return self._tell(*self._provisional.commit(verdict.step, verdict.target))

    def _show(self, now_s: float) -> list[Send]:
        """Tell the own drafts that follow what is shown, while the answer goes on."""
        if self._provisional is None or self.reason is not None:
            return []
        return self._tell(*self._provisional.extend(self._drafts[self.party], now_s - self._opened_s))

    def _forget_drafts(self, step: int) -> None:
        """Drafts of committed steps are needed no more."""
        for party in PARTIES:
            self._drafts[party] = {key: kept for key, kept in self._drafts[party].items() if kept.step > step}
        self._arrived_s = {
            key: at_s for key, at_s in self._arrived_s.items() if key[1] in self._drafts[key[0]]
        }

    def _begin(self, *roles: ActorKind) -> list[Send]:
        message = Begin(session=self.spec.session, spec=self.spec.to_json())
        return [Send(role, message) for role in roles]

    def _adopt_message(self) -> Adopt:
        """All tokens: the decoder may not have heard of all that were committed before."""
        return Adopt(
            session=self.spec.session,
            tokens=tuple(self.prefix.tokens),
            epoch=self._epochs[self.party],
            is_last=self.reason is not None,
            view=self._adopted,
        )

    def _commit_message(self, verdict: Verdict) -> Commit:
        return Commit(
            session=self.spec.session,
            step=verdict.step,
            token=verdict.target,
            epoch=self._epochs[self.party],
            is_last=self.reason is not None,
            view=self._adopted,
        )

    # ---- the link --------------------------------------------------------------------------------------------

    def _on_frame(self, frame: LinkFrame, now_s: float) -> list[Send]:
        self._report.measured(self.link.hear(frame, now_s), self.link.bytes_per_s())
        return self._measure(frame.body, now_s) + self._act_on(frame, now_s)

    def _measure(self, body: LinkBody, now_s: float) -> list[Send]:
        """Answer a probe at once; send the own ones when the peer is first heard, while both sides still prefill."""
        sends = []
        if isinstance(body, Probe) and not body.is_reply:
            sends.append(self.link.send(Probe(is_reply=True, padding=b""), self.prefix, now_s))
        if not self._has_probed:
            self._has_probed = True
            sends += self.link.probe(self.prefix, now_s)
        return sends

    def _act_on(self, frame: LinkFrame, now_s: float) -> list[Send]:
        body: LinkBody = frame.body
        if isinstance(body, Cancel):
            return self._on_cancel(body, now_s)
        if isinstance(body, Done) and body.is_reply:
            return self._on_last_word(now_s)
        if isinstance(body, Resync):
            return self._adopt(frame.view, body, now_s)
        if isinstance(body, Rejoin):
            return self._on_rejoin(body, now_s)
        if self.is_alone:
            return self._resync(now_s)
        if frame.view != self.link.view or self._incarnation is not None:
            return []
        if self._has_diverged(frame):
            return self._on_divergence(frame, now_s)
        # A peer that is ahead may be on another branch: a draft that is not committed here may yet be needed.
        self.link.acknowledge(min(frame.committed, len(self.prefix)), now_s)
        match body:
            case Proposal():
                self._on_peer_draft(body, now_s)
            case Verdict():
                if len(self.prefix) <= body.step < len(self.prefix) + MAX_AHEAD:
                    self._early[body.step] = body
            case Done():
                return self._advance(now_s) + self._on_peer_done(frame, now_s)
            case Heartbeat() | Probe():
                pass
            case _:
                assert_never(body)
        return self._advance(now_s)

    def _on_rejoin(self, rejoin: Rejoin, now_s: float) -> list[Send]:
        """Device: the cloud's draft queue was restarted. One Resync for each restart, however often it asks."""
        if self.party is Party.CLOUD or (rejoin.incarnation in self._rejoined and not self.is_alone):
            return []
        self._rejoined.add(rejoin.incarnation)
        return self._resync(now_s)

    def _has_diverged(self, frame: LinkFrame) -> bool:
        """Two different digests for one count of committed tokens; a count not yet reached is remembered."""
        if frame.committed > len(self.prefix):
            if self.reason is not None:
                return True  # both sides apply one stop rule
            if frame.committed <= len(self.prefix) + MAX_AHEAD:
                self._claims[frame.committed] = frame.committed_digest
        elif self.prefix.digests[frame.committed] != frame.committed_digest:
            return True
        reached = [count for count in self._claims if count <= len(self.prefix)]
        return any(self._claims.pop(count) != self.prefix.digests[count] for count in reached)

    def _on_divergence(self, frame: LinkFrame, now_s: float) -> list[Send]:
        """The device is authoritative; the cloud only lets it see where they differ.

        A cloud that is ahead shows the count that the device has reached: of a greater one it cannot judge.
        """
        if self.party is Party.CLOUD:
            shown = Prefix(self.spec.session, self.prefix.tokens[: frame.committed])
            return [self.link.send(Heartbeat(), shown, now_s)]
        self._report.count("num_divergences")
        return self._resync(now_s)

    def _resync(self, now_s: float) -> list[Send]:
        """Device: a new generation starts from what is committed here."""
        sends = self._tell(PeerEvent(step=len(self.prefix), is_alone=False)) if self.is_alone else []
        self.is_alone = False
        self._asked = None
        self._early.clear()
        self._claims.clear()
        self._peer_done = None
        if self.aggregator is not self.spec.first_aggregator:
            self.aggregator = self.spec.first_aggregator
            sends += self._tell(PlacementEvent(step=len(self.prefix), aggregator=self.aggregator))
        self.link.start_view(self.link.view + 1, 0, now_s)
        self.link.drop_drafts_before(len(self.prefix))
        self._report.count("num_resyncs")
        bodies = [*self._unacknowledged(), *self.link.kept_drafts.values()]
        return sends + [self.link.send(body, self.prefix, now_s) for body in bodies] + self._ask()

    def _adopt(self, view: int, resync: Resync, now_s: float) -> list[Send]:
        """Cloud: take the device's committed tokens over."""
        if self.party is Party.DEVICE or view <= self.link.view:
            return [self.link.send(Heartbeat(), self.prefix, now_s)]
        common = self.prefix.common_length(resync.tokens)
        self.prefix.truncate(common)
        self.prefix.extend(resync.tokens[common:])
        self._asked, self._peer_done = None, None
        self._early.clear()
        self._claims.clear()
        self._incarnation = None
        self._adopted = view
        self._epochs[self.party] += 1
        self.aggregator = resync.aggregator
        self.reason = self._finished(self.prefix.tokens)
        self._finished_s = now_s
        self.link.start_view(view, len(self.prefix), now_s)
        self._keep_held_drafts()
        self._report.count("num_resyncs")
        sends = [Send("decoder", self._adopt_message()), self.link.send(Heartbeat(), self.prefix, now_s)]
        if self.reason is not None:
            return [*sends, *self._complete(now_s)]
        own = self.link.kept_drafts.values()
        return [*sends, *(self.link.send(draft, self.prefix, now_s) for draft in own), *self._ask()]

    def _keep_held_drafts(self) -> None:
        """The device may need any own draft that is held here: it may be paired here before it is emitted anew."""
        held, length = self._drafts[self.party], len(self.prefix)
        if not self.spec.drafts_travel_from(self.party):
            return
        self.link.kept_drafts = {
            key: draft
            for key, draft in held.items()
            if draft.step > length or (draft.step == length and key == self.prefix.digest)
        }

    def _unacknowledged(self) -> list[LinkBody]:
        """What must be repeated until the peer shows that it has it, beside drafts and verdicts."""
        bodies: list[LinkBody] = []
        if self.party is Party.DEVICE and self.link.peer_generation < self.link.view and not self.is_alone:
            bodies.append(Resync(aggregator=self.aggregator, tokens=tuple(self.prefix.tokens)))
        if self._incarnation is not None:
            bodies.append(Rejoin(incarnation=self._incarnation))
        if self.reason is not None:
            bodies.append(Done(is_reply=False))
        return bodies

    # ---- loss and end ----------------------------------------------------------------------------------------

    def _is_abandoned(self, silence_s: float, now_s: float) -> bool:
        if self.party is Party.CLOUD:
            return silence_s > ABANDONED_S
        waited_s = 0.0 if self.reason is None else now_s - self._finished_s
        return min(waited_s, silence_s) > LINGER_S or waited_s > ABANDONED_S

    def _may_go_alone(self) -> bool:
        return self.party is Party.DEVICE and self.reason is None and not self.is_alone

    def _lose_peer(self, silence_s: float, now_s: float) -> list[Send]:
        if self.spec.on_peer_loss == "wait":
            return []
        if self.spec.on_peer_loss == "fail":
            return self.fail(
                f"The cloud must answer within {silence_s:.1f} s but is silent; check the link, "
                "or set on_peer_loss to 'continue' or 'wait'.",
                now_s,
            )
        return self._go_alone()

    def _go_alone(self, reason: str | None = None) -> list[Send]:
        self.is_alone = True
        self._asked = None
        return self._tell(PeerEvent(step=len(self.prefix), is_alone=True, reason=reason)) + self._ask()

    def _on_cancel(self, cancel: Cancel, now_s: float) -> list[Send]:
        if self.party is Party.CLOUD:
            return self._end("cancelled", None, now_s) + self._free()
        if self.reason is not None:
            return self._free()
        if self.spec.on_peer_loss == "continue" and not cancel.is_refused:
            return [] if self.is_alone else self._go_alone(cancel.reason)
        return self._end("failed", f"The cloud gave the query up: {cancel.reason}", now_s) + self._free()

    def _on_last_word(self, now_s: float) -> list[Send]:
        """The peer has freed the session. Of a device that has not finished it has heard nothing for too long."""
        if self.party is Party.CLOUD or self.reason is not None:
            return self._free()
        if self.spec.on_peer_loss != "continue":
            return self.fail(
                f"The cloud keeps a query through at most {ABANDONED_S:.0f} s of silence and has freed this one; "
                "ask again, or set on_peer_loss to 'continue'.",
                now_s,
            )
        return [] if self.is_alone else self._go_alone()

    def _on_peer_done(self, frame: LinkFrame, now_s: float) -> list[Send]:
        """The peer has committed everything; once this side has the same, nothing is owed to anybody."""
        self._peer_done = frame.committed, frame.committed_digest
        if self.is_over or self.reason is None:
            return []
        if not self._peer_agrees():
            return self._on_divergence(frame, now_s)
        return [self.link.send(Done(is_reply=True), self.prefix, now_s), *self._free()]

    def _failure(self, reason: str) -> Cancel:
        """A failure as the peer may know it: the device's own paths are private."""
        told = reason if self.party is Party.CLOUD else _DEVICE_FAILED
        return Cancel(reason=told, is_refused=self._is_refused)

    def _peer_agrees(self) -> bool:
        """Whether the peer's whole answer is this one."""
        return self._peer_done == (len(self.prefix), self.prefix.digest)

    def _complete(self, now_s: float) -> list[Send]:
        """The last token is committed."""
        reason = self.reason
        assert reason is not None
        sends = self._end(reason, None, now_s)
        if self._peer_agrees():
            return [*sends, self.link.send(Done(is_reply=True), self.prefix, now_s), *self._free()]
        if self.is_lone:
            return [*sends, *self._free()]
        if self.is_alone:
            return [*sends, self.link.send(Cancel(reason=_FINISHED_ALONE), self.prefix, now_s), *self._free()]
        return [*sends, self.link.send(Done(is_reply=False), self.prefix, now_s)]

    def _end(self, reason: StopReason, error: str | None, now_s: float) -> list[Send]:
        self.reason, self.error, self._finished_s = reason, error, now_s
        void = [] if self._provisional is None else self._provisional.retract(len(self.prefix))
        return self._tell(*void, DoneEvent(reason=reason, statistics=self.statistics, error=error))

    def _free(self) -> list[Send]:
        if self.is_over:
            return []
        self.is_over = True
        return [Send(role, End(session=self.spec.session)) for role in self._listeners]

    def _to_peer(self, body: LinkBody, now_s: float) -> list[Send]:
        """Across the link, where there is a peer."""
        return [] if self.is_lone else [self.link.send(body, self.prefix, now_s)]

    def _tell(self, *events: Event) -> list[Send]:
        """Tell the user, who listens at one side; the other's queue has nobody to tell."""
        if self.party is not self.spec.home:
            return []
        return [Send("client", ClientEvent(self.spec.session, event)) for event in events]


def _acceptance(verdict: Verdict, decision: VerifyResult | None) -> dict[Party, float]:
    """Expected acceptance of a step: of the own decision, or as the verdict tells it."""
    if decision is not None:
        return {Party.DEVICE: decision.device_acceptance, Party.CLOUD: decision.cloud_acceptance}
    return {Party.DEVICE: verdict.device_acceptance / 127, Party.CLOUD: verdict.cloud_acceptance / 127}
