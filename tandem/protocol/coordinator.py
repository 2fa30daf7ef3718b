"""One session as a coordinator (the draft queue) sees it: make ballots, commit in order, keep the peers in step.

Each party's coordinator holds the committed prefix, and what those that it depends on propose and vote. It has the
aggregator decide a ballot, commits the verdict, and passes it to the own decoder and to the peers that do not decide by
themselves. A vote is opaque bytes that match a prefix or do not. The modes differ in who sends what to whom
(`Routes`) and in what a ballot needs (`BallotBox`); everything else is the same in all of them.
"""

from __future__ import annotations

from typing import assert_never

from tandem.codecs.race_lists import vote_depth
from tandem.errors import ProtocolError
from tandem.messages import (
    Begin,
    Cancel,
    DecoderFailed,
    DecoderReady,
    Done,
    Estimate,
    LinkBody,
    LinkFrame,
    ListRequest,
    Local,
    Proposal,
    Rejoin,
    Resync,
    Sources,
    Undecided,
    Verdict,
    VerifyResult,
    Votes,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.ballots import BallotBox
from tandem.protocol.committing import Committer
from tandem.protocol.convergence import Convergence
from tandem.protocol.leading import Leading
from tandem.protocol.lifecycle import Lifecycle, StopCheck
from tandem.protocol.link import PeerLink
from tandem.protocol.log import CommittedLog
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.race_votes import RaceVotes
from tandem.protocol.reminders import Debt, Reminders
from tandem.protocol.report import Reporter, make_estimate_event
from tandem.protocol.routes import Routes
from tandem.topology import in_words

LocalMessage = Local | VerifyResult | Undecided | DecoderReady | DecoderFailed | Estimate


class SessionCoordinator:
    """The state of one query at one party. Its parts have their own state and invariants; this class connects them."""

    def __init__(
        self, spec: SessionSpec, party: str, check_stop: StopCheck, now_s: float, *, measures: bool = True
    ) -> None:
        """measures: probe round trip and bandwidth when the first frame of a peer arrives."""
        self.routes = Routes(spec, party)
        self.log = CommittedLog(spec.session, spec.roles, spec.rules.first_decider, spec.committed)
        self.ballots = BallotBox(
            spec.session, spec.rules, party, vote_depth if spec.rules.has_race_lists else None
        )
        peers = spec.roles.topology.peers(party)
        self.links = {peer: PeerLink(spec.session, now_s, peer, measures=measures) for peer in peers}
        self.reporter = Reporter(spec, party)
        self.lifecycle = Lifecycle(spec, self.routes, self.log, self.ballots, self.links, self.reporter)
        parts = self.log, self.ballots, self.links, self.reporter
        self.race_votes = RaceVotes(spec, self.routes, *parts, self.lifecycle.lost)
        publish = self.race_votes.make_public
        self.convergence = {
            peer: Convergence(
                spec, self.routes, self.log, self.ballots, link, self.reporter, self.lifecycle, publish
            )
            for peer, link in self.links.items()
        }
        self.committer = Committer(spec, self.routes, *parts, self.lifecycle, check_stop, now_s)
        self.leading = Leading(spec, self.routes, self.log, self.ballots, self.lifecycle)
        self.refusals: list[str] = []  # one sentence for each thing of a peer that proved unusable later on
        self._reminders = Reminders()

    @property
    def spec(self) -> SessionSpec:
        """The query."""
        return self.routes.spec

    @property
    def party(self) -> str:
        """Whose coordinator this is."""
        return self.routes.party

    @property
    def prefix(self) -> Prefix:
        """The committed tokens."""
        return self.log.prefix

    # ---- entries: each takes a message and the time, and returns what to send ----------------------------------

    def begin(self, now_s: float) -> list[Send]:
        """Start the own actors, and open the session at the peers, or show the home that it is open here."""
        sends = [*self._begin(*self.lifecycle.listeners), *self.committer.resume()]
        for peer, convergence in self.convergence.items():
            sends += self.lifecycle.to_peer(peer, convergence.make_greeting(), now_s)
        return sends

    def rejoin(self, incarnation: int, now_s: float) -> list[Send]:
        """Begin at a party whose coordinator was restarted. incarnation: new, 32 bits."""
        sends = self._begin(*self.lifecycle.listeners)
        self.log.is_known = False
        for peer, convergence in self.convergence.items():
            convergence.incarnation = incarnation
            sends += self.lifecycle.to_peer(peer, Rejoin(incarnation=incarnation), now_s)
        return sends

    def restart(self, role: ActorKind) -> list[Send]:
        """Give the session as it stands to an actor of this party that was restarted, or may lack a part of it."""
        if role not in self.lifecycle.listeners:
            return []
        sends = self._begin(role)
        if role == "decoder":
            sends.append(Send("decoder", self.log.make_adopt(is_last=self.lifecycle.reason is not None)))
            sends += self.leading.make_again()
        elif role == "aggregator":
            self.ballots.reopen()
            sends += self._ask()
        return sends

    def receive(self, message: LocalMessage, now_s: float) -> list[Send]:
        """A message of an own actor."""
        if self.lifecycle.is_over:
            return []
        match message:
            case Local(body=Proposal()):
                return self._on_own_proposal(message.body, now_s)
            case Local():
                return self._on_own_votes(message.body, now_s)
            case VerifyResult():
                return self._on_result(message, now_s)
            case Undecided():
                return self._on_undecided(message, now_s)
            case DecoderReady():
                return self.committer.messenger.tell_sources(message, now_s)
            case DecoderFailed():
                return self.lifecycle.fail(message.reason, now_s, message.fault)
            case Estimate():
                is_running = self.lifecycle.reason is None
                return self.reporter.emit(make_estimate_event(message)) if is_running else []
            case _:
                assert_never(message)

    def receive_frame(
        self, frame: LinkFrame, now_s: float, source: str = "", waited_s: float = 0.0
    ) -> list[Send]:
        """A frame of a peer, by default the only one. waited_s: how long ago it arrived, before the query.

        Raises ProtocolError, one sentence, where that peer may not send such a frame; it changes nothing, and the
        session goes on.
        """
        if self.lifecycle.is_over:
            return []
        source = source or next(iter(self.links), "a peer")
        self.routes.check(source, frame.body)
        link = self.links[source]
        if frame.view > link.view and self.routes.is_authority:
            raise ProtocolError(
                f"{source} sent a frame of view {frame.view}, but {in_words(self.party)} begins the views and has "
                f"begun {link.view}; check its version."
            )
        self.reporter.measure(link.receive(frame, now_s, waited_s), link.round_trips.take_bytes_per_s())
        sends = link.answer_probe(frame.body, self.prefix, now_s) + self._act_on(source, frame, now_s)
        return sends + link.release(self.prefix, now_s)

    def tick(self, now_s: float) -> list[Send]:
        """Timers: reminders, resend, heartbeat, loss of a peer, lingering. Call every 50 ms or so."""
        if self.lifecycle.is_over:
            return []
        if self.lifecycle.is_solo:
            return self._remind(now_s)
        if self.lifecycle.is_abandoned(now_s):
            return self.lifecycle.free()
        sends = self.leading.go_on(now_s - self.committer.committed_s)
        for peer in (name for name in self.links if name not in self.lifecycle.finished):
            sends += self.links[peer].due(self.prefix, now_s, self.convergence[peer].unacknowledged())
        return sends + self.lifecycle.check_peers(now_s) + self._ask() + self._remind(now_s)

    def _remind(self, now_s: float) -> list[Send]:
        """Give the session again to an actor that owes something for too long: a message may have been lost."""
        here = None if self.lifecycle.reason is not None else (self.log.view, self.prefix.digest)
        debts: dict[ActorKind, Debt] = {
            "decoder": here if self.prefix.digest not in self.ballots.own else None,
            "aggregator": here if here and (self.ballots.pending or ())[:2] == here else None,
        }
        return [send for role in self._reminders.take_due(debts, now_s) for send in self.restart(role)]

    def resend_all(self, now_s: float, peer: str = "") -> list[Send]:
        """There is a new connection to a peer (default: to all): send at once whatever it has not acknowledged."""
        named = [one for name, one in self.convergence.items() if peer in ("", name)]
        return [] if self.lifecycle.is_over else [send for one in named for send in one.resend_all(now_s)]

    def _begin(self, *roles: ActorKind) -> list[Send]:
        return [Send(role, Begin(session=self.spec.session, spec=self.spec.to_json())) for role in roles]

    # ---- proposals, votes and ballots --------------------------------------------------------------------------

    def _on_own_proposal(self, proposal: Proposal, now_s: float) -> list[Send]:
        if self.lifecycle.reason is not None or proposal.step + len(proposal.tokens) < len(self.prefix):
            return []
        num_held = len(self.ballots.own)
        self.ballots.hold_proposal(self.party, proposal, self.prefix, now_s - self.committer.opened_s)
        sends = self.committer.note(proposal, now_s)
        if len(self.ballots.own) > num_held or not proposal.tokens:
            sends += self.lifecycle.propose(self.race_votes.make_public(proposal), now_s)
        return sends + self._advance(now_s)

    def _on_own_votes(self, votes: Votes, now_s: float) -> list[Send]:
        """Votes that are held already go out as they went out before, whatever was computed now."""
        if self.lifecycle.reason is not None:
            return []
        num_held = len(self.ballots.own)
        self.ballots.hold_votes(self.party, votes, self.prefix, now_s - self.committer.opened_s)
        if len(self.ballots.own) == num_held:
            return []
        public = self.race_votes.make_public(self.ballots.restore(votes))
        sends = self.lifecycle.post(self.routes.votes_go_to, public, now_s)
        return sends + self._advance(now_s)

    def _advance(self, now_s: float) -> list[Send]:
        """Commit the peers' verdicts in step order, then ask for the next one if this party decides."""
        sends = self.committer.show(now_s)
        while self.lifecycle.reason is None and (verdict := self.log.take_next()) is not None:
            try:
                decider = self.committer.messenger.decider
                self.routes.check_turn(decider, verdict, len(self.prefix), self.log.decider)
            except ProtocolError as error:  # it came before its turn, which then was not its sender's
                self.refusals.append(str(error))
                continue
            sends += self._commit(verdict, None, now_s)
            if len(self.prefix) < verdict.step + len(verdict.tokens):
                self.refusals.append(
                    f"{decider} decided {len(verdict.tokens)} tokens from step {verdict.step} on, but the answer ends "
                    f"with {len(self.prefix)}; check its settings."
                )
        return sends + self._ask()

    def _ask(self) -> list[Send]:
        """Send the next ballot to the aggregator, if there is one and it is not there yet. Safe to call at any time."""
        if self.lifecycle.reason is not None or not self.log.is_known or not self.lifecycle.decides_here:
            return []
        ballot = self.ballots.take_ballot(self.log.view, self.prefix, self.lifecycle.voters)
        wanted = self.leading.go_on(0.0)
        return wanted if ballot is None else [*wanted, Send("aggregator", ballot)]

    def _on_undecided(self, undecided: Undecided, now_s: float) -> list[Send]:
        """A ballot needs more of a vote, or holds one that cannot be read: that counts as not received."""
        if not undecided.unreadable:
            return self.race_votes.ask(undecided, now_s)
        if not self.ballots.is_pending(undecided):
            return []
        for voter in undecided.unreadable:
            self.ballots.drop(self.routes.topology.name(voter), undecided.digest)
        self.refusals.append(undecided.problem)
        return self._advance(now_s)

    # ---- verdicts and commits ----------------------------------------------------------------------------------

    def _on_result(self, result: VerifyResult, now_s: float) -> list[Send]:
        is_next = self.ballots.is_pending(result) and result.digest == self.prefix.digest
        if self.lifecycle.reason is not None or not is_next:
            return []
        verdict = self.committer.make_verdict(result)
        self.race_votes.count_decided(result, len(verdict.tokens))
        addressed = self.committer.messenger.address(verdict)
        sends = self._commit(verdict, result, now_s)
        for peers, body in addressed:
            sends = [*self.lifecycle.post_verdict(peers, body, now_s), *sends]
        return sends + self._advance(now_s)

    def _commit(self, verdict: Verdict, result: VerifyResult | None, now_s: float) -> list[Send]:
        """Commit a verdict: the own one, made of `result`, or a peer's."""
        sends = self.committer.commit(verdict, result, now_s)
        if self.lifecycle.reason is not None:
            agreeing = {peer for peer, convergence in self.convergence.items() if convergence.peer_agrees()}
            sends += self.lifecycle.complete(now_s, agreeing)
        return sends

    # ---- the links ---------------------------------------------------------------------------------------------

    def _act_on(self, source: str, frame: LinkFrame, now_s: float) -> list[Send]:
        body, link, convergence = frame.body, self.links[source], self.convergence[source]
        if source in self.lifecycle.lost and not self.routes.is_authority:
            return self.committer.messenger.dismiss(source, body, now_s)
        match body:
            case Cancel():
                return self.lifecycle.on_cancel(source, body, now_s) + self._ask()
            case Done(is_reply=True):
                return self.lifecycle.on_last_word(source, now_s) + self._ask()
            case Resync():
                return convergence.adopt(frame.view, body, self.committer.check_stop, now_s) + self._ask()
            case Rejoin():
                return convergence.on_rejoin(body, now_s) + self._ask()
        if source in self.lifecycle.lost:
            return convergence.resync(now_s) + self._ask()
        if frame.view != link.view or convergence.incarnation is not None:
            return []
        self.routes.check_turn(source, body, len(self.prefix), self.log.decider)
        if convergence.has_diverged(frame):
            return convergence.on_divergence(frame, now_s) + self._ask()
        # A peer that is ahead may be on another branch: a proposal that is not committed here may still be needed.
        link.acknowledge(frame, min(frame.committed, len(self.prefix)), now_s)
        if isinstance(body, Done):
            return self._advance(now_s) + convergence.on_done(frame, now_s) + self._ask()
        if isinstance(body, ListRequest):
            return self.race_votes.answer(source, body, frame.number, now_s)
        if isinstance(body, Sources):
            link.receipts.add(frame.number, now_s)
            return self.committer.messenger.take_sources(source, body, now_s) + self._advance(now_s)
        if self._take_in(source, body, now_s):
            link.receipts.add(frame.number, now_s)
        return self.leading.lead(source, body) + self._advance(now_s)

    def _take_in(self, source: str, body: LinkBody, now_s: float) -> bool:
        """Hold what a peer decided, proposed or voted. False: it is too far ahead; not acknowledged, it comes again."""
        match body:
            case Verdict():
                self.log.hold(body)
                return self.log.is_near(body.step)
            case Proposal():
                return self.ballots.hold_proposal(source, body, self.prefix, now_s - self.committer.opened_s)
            case Votes():
                return self.ballots.hold_votes(source, body, self.prefix, now_s - self.committer.opened_s)
            case _:
                return False  # the header says it all
