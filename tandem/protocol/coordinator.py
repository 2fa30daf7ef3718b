"""One session as a coordinator (the draft queue) sees it: make ballots, commit in order, keep the peer in step.

Each party's coordinator holds both parties' proposals and the committed prefix. It has the aggregator decide a ballot,
commits the verdict, and passes it to the own decoder and, unless both parties aggregate, to the peer. A proposal is
opaque bytes that match a prefix or do not.
"""

from __future__ import annotations

from typing import assert_never

from tandem.events import PlacementEvent
from tandem.protocol.ballots import BallotBox
from tandem.protocol.convergence import Convergence
from tandem.protocol.lifecycle import Lifecycle, StopCheck
from tandem.protocol.link import PeerLink
from tandem.protocol.log import MAX_AHEAD, CommittedLog
from tandem.protocol.messages import (
    Begin,
    Cancel,
    DecoderFailed,
    DecoderReady,
    Done,
    Estimate,
    Heartbeat,
    LinkBody,
    LinkFrame,
    Proposal,
    ProposalReady,
    Rejoin,
    Resync,
    Sources,
    Verdict,
    VerifyResult,
)
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.reminders import Debt, Reminders
from tandem.protocol.report import CommitRecord, Reporter, expected_acceptance, make_estimate_event
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party


class SessionCoordinator:
    """The state of one query at one party. Its parts have their own state and invariants; this class connects them."""

    def __init__(
        self, spec: SessionSpec, party: Party, check_stop: StopCheck, now_s: float, *, measures: bool = True
    ) -> None:
        """measures: probe round trip and bandwidth when the first frame of the peer arrives."""
        self.spec = spec
        self.party = party
        self.log = CommittedLog(spec.session, spec.first_aggregator)
        self.ballots = BallotBox(spec.session, party)
        self.link = PeerLink(spec.session, now_s, measures=measures)
        self.reporter = Reporter(spec, party)
        self.lifecycle = Lifecycle(spec, party, self.log, self.ballots, self.link, self.reporter)
        self.convergence = Convergence(
            spec, party, self.log, self.ballots, self.link, self.reporter, self.lifecycle
        )
        self._reminders = Reminders()
        self._check_stop = check_stop
        self._opened_s = now_s

    @property
    def prefix(self) -> Prefix:
        """The committed tokens."""
        return self.log.prefix

    # ---- entries: each takes a message and the time, and returns what to send ----------------------------------

    def begin(self, now_s: float) -> list[Send]:
        """Start the own actors, and open the session at the peer, or show the home that it is open here."""
        sends = self._begin(*self.lifecycle.listeners)
        is_home = self.party is self.spec.home
        return sends + self.lifecycle.to_peer(self.convergence.make_open() if is_home else Heartbeat(), now_s)

    def rejoin(self, incarnation: int, now_s: float) -> list[Send]:
        """Begin on a cloud whose coordinator was restarted. incarnation: new, 32 bits."""
        self.convergence.incarnation = incarnation
        rejoin = self.link.send(Rejoin(incarnation=incarnation), self.prefix, now_s)
        return [*self._begin(*self.lifecycle.listeners), rejoin]

    def restart(self, role: ActorKind) -> list[Send]:
        """Give the session as it stands to an actor of this party that was restarted, or may lack a part of it."""
        if role not in self.lifecycle.listeners:
            return []
        sends = self._begin(role)
        if role == "decoder":
            sends.append(Send("decoder", self.convergence.make_adopt()))
        if role == "aggregator":
            self.ballots.reopen()
            sends += self._ask()
        return sends

    def receive(
        self,
        message: ProposalReady | VerifyResult | LinkFrame | DecoderReady | DecoderFailed | Estimate,
        now_s: float,
        waited_s: float = 0.0,
    ) -> list[Send]:
        """Any message of this session. waited_s: how long ago it arrived, for a frame that came before the query."""
        if self.lifecycle.is_over:
            return []
        match message:
            case ProposalReady():
                return self._on_own_proposal(message, now_s)
            case VerifyResult():
                return self._on_result(message, now_s)
            case LinkFrame():
                return [] if self.lifecycle.is_solo else self._on_frame(message, now_s, waited_s)
            case DecoderReady():
                return self._on_ready(message, now_s)
            case DecoderFailed():
                return self.lifecycle.fail(message.reason, now_s, is_refused=message.is_refused)
            case Estimate():
                is_late = self.lifecycle.reason is not None
                return [] if is_late else self.reporter.emit(make_estimate_event(message))
            case _:
                assert_never(message)

    def tick(self, now_s: float) -> list[Send]:
        """Timers: reminders, resend, heartbeat, loss of the peer, lingering. Call every 50 ms or so."""
        if self.lifecycle.is_over:
            return []
        if self.lifecycle.is_solo:
            return self._remind(now_s)
        if self.lifecycle.is_abandoned(now_s):
            return self.lifecycle.free()
        sends = self.link.due(self.prefix, now_s, self.convergence.unacknowledged())
        return sends + self.lifecycle.check_peer(now_s) + self._ask() + self._remind(now_s)

    def _remind(self, now_s: float) -> list[Send]:
        """Give the session again to an actor that owes something for too long: a message may have been lost."""
        here = None if self.lifecycle.reason is not None else (self.link.view, self.prefix.digest)
        owes_proposal = self.prefix.digest not in self.ballots.own
        owes_result = self.ballots.pending == here
        debts: dict[ActorKind, Debt] = {
            "decoder": here if owes_proposal else None,
            "aggregator": here if owes_result else None,
        }
        due = self._reminders.take_due(debts, now_s)
        return [send for role in due for send in self.restart(role)]

    def resend_all(self, now_s: float) -> list[Send]:
        """There is a new connection to the peer: send at once whatever it has not acknowledged."""
        if self.lifecycle.is_over or self.lifecycle.is_solo:
            return []
        sends = self.link.resend(self.convergence.unacknowledged(), self.prefix, now_s)
        sends += self.link.resend_missing(self.prefix, now_s)
        return sends or [self.link.send(Heartbeat(), self.prefix, now_s)]

    def _begin(self, *roles: ActorKind) -> list[Send]:
        message = Begin(session=self.spec.session, spec=self.spec.to_json())
        return [Send(role, message) for role in roles]

    # ---- proposals and ballots ---------------------------------------------------------------------------------

    def _on_own_proposal(self, ready: ProposalReady, now_s: float) -> list[Send]:
        proposal: Proposal = ready.proposal
        if self.lifecycle.reason is not None or proposal.step < len(self.prefix):
            return []
        is_new = proposal.digest not in self.ballots.own
        proposal = self.ballots.hold(proposal, now_s - self._opened_s)
        self.reporter.hold(proposal)
        sends = self._show(now_s)
        is_needed = is_new and proposal.digest in self.ballots.own and not self.lifecycle.peer_lost
        if is_needed and self.spec.drafts_travel_from(self.party):
            sends.append(self.link.post(proposal, self.prefix, now_s))
        return sends + self._advance(now_s)

    def _on_ready(self, ready: DecoderReady, now_s: float) -> list[Send]:
        """Tell the client, who is at home, of this party's documents."""
        if self.party is self.spec.home:
            return self.reporter.emit_own_sources(ready)
        sources = self.reporter.note_sources(ready)
        return [] if sources is None else [self.link.post(sources, self.prefix, now_s)]

    def _advance(self, now_s: float) -> list[Send]:
        """Commit the peer's verdicts in step order, then ask for the next one if this party decides."""
        sends: list[Send] = []
        while self.lifecycle.reason is None and (verdict := self.log.take_next()) is not None:
            sends += self._commit(verdict, None, now_s)
        return sends + self._ask()

    def _ask(self) -> list[Send]:
        """Send the next ballot to the aggregator, if there is one and it is not there yet. Safe to call at any time."""
        if self.lifecycle.reason is not None or not self.lifecycle.decides_here:
            return []
        is_alone = self.lifecycle.decides_alone
        ballot = self.ballots.take_ballot(self.link.view, self.prefix, is_alone=is_alone)
        return [] if ballot is None else [Send("aggregator", ballot)]

    # ---- verdicts and commits ----------------------------------------------------------------------------------

    def _on_result(self, result: VerifyResult, now_s: float) -> list[Send]:
        is_pending = self.ballots.pending == (result.view, result.digest)
        if self.lifecycle.reason is not None or not is_pending or result.digest != self.prefix.digest:
            return []
        verdict = self.log.make_verdict(result)
        sends = self._commit(verdict, result, now_s)
        if self.spec.placement != "mirror" and not self.lifecycle.decides_alone:
            sends.insert(0, self.link.post(verdict, self.prefix, now_s))
        return sends + self._advance(now_s)

    def _commit(self, verdict: Verdict, result: VerifyResult | None, now_s: float) -> list[Send]:
        """Commit a verdict: the own one, made of `result`, or the peer's."""
        record = self._append(verdict, result, now_s)
        event, observations = self.reporter.commit(record)
        sends = [Send("decoder", self.convergence.make_commit(verdict))]
        sends += self.reporter.confirm(verdict.step, verdict.target)
        sends += self.reporter.emit(event) + self._show(now_s) + observations
        if verdict.next_aggregator is not self.log.aggregator:
            self.log.aggregator = verdict.next_aggregator
            sends += self.reporter.emit(PlacementEvent(step=verdict.step + 1, aggregator=self.log.aggregator))
        if self.lifecycle.reason is not None:
            sends += self.lifecycle.complete(now_s, peer_agrees=self.convergence.peer_agrees())
        return sends

    def _append(self, verdict: Verdict, result: VerifyResult | None, now_s: float) -> CommitRecord:
        proposals = self.ballots.proposals_on(self.prefix.digest)
        arrived_s = self.ballots.arrivals_on(self.prefix.digest)
        self.log.append(verdict)
        self.ballots.advance(self.prefix)
        self.link.backlog.drop_dead(self.ballots.own, len(self.prefix))
        self.lifecycle.reason = self._check_stop(self.prefix.tokens)
        # A full ballot may have been under way when the peer was lost.
        is_alone = self.lifecycle.decides_alone and proposals[self.party.other] is None
        return CommitRecord(
            verdict=verdict,
            decided_by=self.party if result is not None else self.party.other,
            acceptance=expected_acceptance(verdict, result),
            proposals=proposals,
            arrived_s=arrived_s,
            is_alone=is_alone,
            is_degraded=is_alone and not self.lifecycle.is_solo,
            is_last=self.lifecycle.reason is not None,
            committed_s=now_s - self._opened_s,
        )

    def _show(self, now_s: float) -> list[Send]:
        """Show the own drafts that follow what is shown, while the answer goes on."""
        if self.lifecycle.reason is not None:
            return []
        return self.reporter.show(self.ballots.own, now_s - self._opened_s)

    # ---- the link ----------------------------------------------------------------------------------------------

    def _on_frame(self, frame: LinkFrame, now_s: float, waited_s: float) -> list[Send]:
        self.reporter.measure(
            self.link.receive(frame, now_s, waited_s), self.link.round_trips.take_bytes_per_s()
        )
        answer = self.link.answer_probe(frame.body, self.prefix, now_s)
        return answer + self._act_on(frame, now_s)

    def _act_on(self, frame: LinkFrame, now_s: float) -> list[Send]:
        body: LinkBody = frame.body
        match body:
            case Cancel():
                return self.lifecycle.on_cancel(body, now_s) + self._ask()
            case Done(is_reply=True):
                return self.lifecycle.on_last_word(now_s) + self._ask()
            case Resync():
                return self.convergence.adopt(frame.view, body, self._check_stop, now_s) + self._ask()
            case Rejoin():
                return self.convergence.on_rejoin(body, now_s) + self._ask()
        if self.lifecycle.peer_lost:
            return self.convergence.resync(now_s) + self._ask()
        if frame.view != self.link.view or self.convergence.incarnation is not None:
            return []
        if self.convergence.has_diverged(frame):
            return self.convergence.on_divergence(frame, now_s) + self._ask()
        # A peer that is ahead may be on another branch: a proposal that is not committed here may still be needed.
        self.link.acknowledge(frame, min(frame.committed, len(self.prefix)), now_s)
        match body:
            case Proposal() | Verdict():
                self._take_in(body, frame.number, now_s)
            case Done():
                return self._advance(now_s) + self.convergence.on_done(frame, now_s) + self._ask()
            case Sources():
                self.link.receipts.add(frame.number, now_s)
                return self.reporter.emit_sources(self.party.other, body) + self._advance(now_s)
            case _:
                pass  # the header says it all, or it belongs to a mode with a drafter that has no vote
        return self._advance(now_s)

    def _take_in(self, body: Proposal | Verdict, number: int, now_s: float) -> None:
        """Hold what the peer decided or proposed. What is too far ahead is not acknowledged, so it comes again."""
        if body.step >= len(self.prefix) + MAX_AHEAD:
            return
        self.link.receipts.add(number, now_s)
        if isinstance(body, Verdict):
            self.log.hold(body)
        elif self.log.expects(body.step) and body.party is self.party.other:
            self.ballots.hold(body, now_s - self._opened_s)
