"""One session as a coordinator (the draft queue) sees it: make ballots, commit in order, keep the peers in step.

Each party's coordinator holds the committed tokens, and what those that it depends on propose and vote. It has the
aggregator decide a ballot, commits the verdict, and passes it to the own decoder and to the peers that do not decide by
themselves. A vote is opaque bytes that match a prefix or do not. The modes differ in who sends what to whom
(`Routes`) and in what a ballot needs (`BallotBox`); everything else is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import assert_never

from tandem.codecs.votes import vote_depth
from tandem.errors import FAILED, Code, Fault, ProtocolError
from tandem.events import DoneEvent, PeerEvent, PlacementEvent, SessionStatistics, StopReason
from tandem.messages import (
    Alone,
    Begin,
    Cancel,
    DecoderFailed,
    DecoderReady,
    Done,
    End,
    Estimate,
    Heartbeat,
    LinkBody,
    LinkFrame,
    ListRequest,
    Local,
    Rejoin,
    Resync,
    Sources,
    Verdict,
    VerifyResult,
    Vote,
)
from tandem.modes import SessionSpec
from tandem.protocol.ballots import BallotBox, RaceVotes
from tandem.protocol.link import Backoff, Problem
from tandem.protocol.log import Log, Prefix
from tandem.protocol.peer import Numbered, Peer
from tandem.protocol.report import Reporter, make_estimate_event
from tandem.protocol.routes import ActorKind, Routes, Send
from tandem.topology import at_start

StopCheck = Callable[[Sequence[int]], StopReason | None]
"""Why an answer of these tokens is complete, or None: end-of-sequence, stop string, length."""
LocalMessage = Local | VerifyResult | DecoderReady | DecoderFailed | Estimate

LINGER_S = 10.0
"""Silence of a peer after which a finished authority no longer waits for its Done."""
ABANDONED_S = 60.0
"""Silence of the authority after which a peer frees a session, finished or not: the authority may still need it.
Also the longest that a finished authority waits for a peer that is alive but does not finish."""
PROGRESS = (Vote, Verdict)
"""Bodies that an answer is made of. They bring a peer back that was heard and sent nothing of it."""
PROPOSAL_WAIT_S = 0.5
"""A voter without a proposal votes on the committed prefix after this long: no drafter can stop the answer."""
FIRST_REMINDER_S, MAX_REMINDER_S = 1.0, 8.0
"""How long an actor of this party may owe the same before it gets the session again."""
_CANCELLED = Cancel(reason="The query was cancelled.", fault=Fault(code=Code.CANCELLED))
_BEHIND = "{} decided {} tokens from step {} on, but the answer ends with {}; check its settings."
_LOST = "{}, or set on_peer_loss to 'continue' or 'wait'."
_FREED = (
    "{} frees a query after {:.0f} s of silence and has freed this one; ask again, or set on_peer_loss to "
    "'continue'."
)


@dataclass(slots=True)
class Ending:
    """The stage of a session: it runs, its answer is complete for some reason, or it is over."""

    reason: StopReason | None = None  # only a Resync can take it back
    finished_s: float = nan
    cancel: Cancel | None = None  # what the peers hear of a query that was cancelled or failed
    fault: Fault | None = None  # what the client hears of one that failed
    is_over: bool = False  # for good: nothing is owed to anybody

    def last_word(self, peer: Peer, party: str) -> LinkBody:
        """To a peer that is not to go on. party: this one."""
        if self.cancel is not None:
            return self.cancel
        if peer.is_lost:
            return Cancel(reason=f"{at_start(party)} answers alone.", fault=_CANCELLED.fault)
        return Done(is_reply=True)


class Session:
    """The state of one query at one party. It alone holds log, ballots and peers; none of them knows another.

    Invariants: after each token ballots and peers hold nothing that cannot count any more, and the stop rule has been
    asked about exactly the committed tokens. The authority's tokens never change, and only it starts a view; a peer
    enters a view only by adopting. A party follows the peer towards home and loses only others; from the step of the
    PeerEvent on, exactly the votes of those that are not lost count. A home that has lost the authority never takes it
    back. Log probabilities and sources go towards home and no other way.
    """

    def __init__(
        self, spec: SessionSpec, party: str, check_stop: StopCheck, now_s: float, *, measures: bool = True
    ) -> None:
        """measures: probe round trip and bandwidth when the first frame of a peer arrives."""
        self.spec, self.party = spec, party
        self.routes = Routes(spec, party)
        self.log = Log(spec.session, spec.roles, spec.rules.first_decider, now_s)
        self.ballots = BallotBox(
            spec.session, spec.rules, party, vote_depth if spec.rules.has_race_lists else None
        )
        names = spec.roles.topology.peers(party)
        self.peers = {name: Peer(spec.session, now_s, name, measures=measures) for name in names}
        self.race_votes = RaceVotes(spec, party)
        self.report = Reporter(spec, party)
        self.end = Ending()
        self.refusals: list[str] = []  # one sentence for each thing of a peer that proved unusable later on
        self._check_stop = check_stop
        self._asked = b""  # the last prefix that the own decoder was asked to vote on without a proposal
        # of own actors: the view and the prefix on which each owes something, and when it is to be reminded
        self._reminders: dict[ActorKind, tuple[tuple[int, bytes], Backoff]] = {}

    @property
    def prefix(self) -> Prefix:
        """The committed tokens."""
        return self.log.prefix

    @property
    def is_over(self) -> bool:
        """Whether nothing is owed to anybody any more."""
        return self.end.is_over

    @property
    def lost(self) -> set[str]:
        """The peers that are lost at present."""
        return {name for name, peer in self.peers.items() if peer.is_lost}

    @property
    def decides_alone(self) -> bool:
        """Whether this party decides without any peer, be it lost or never asked."""
        return all(peer.is_lost for peer in self.peers.values())

    @property
    def decides_here(self) -> bool:
        """Whether this party decides the next step."""
        return self.decides_alone or self.spec.rules.all_decide or self.log.decider == self.party

    @property
    def present(self) -> tuple[str, ...]:
        """The voters that are not lost; without any, or if they are late, this party continues alone."""
        lost, voters = self.lost, self.routes.roles.voters
        is_alone = self.decides_alone or self.ballots.is_late(self.prefix.digest)
        return (self.party,) if is_alone else tuple(name for name in voters if name not in lost)

    @property
    def statistics(self) -> SessionStatistics:
        """Counters so far."""
        return self.report.statistics(sum(peer.deliveries.num_resent for peer in self.peers.values()))

    # ---- entries: each takes an event and the time, and returns what to send -----------------------------------

    def begin(self, now_s: float, incarnation: int | None = None) -> list[Send]:
        """Start the own actors, and open the session at the peers, or show the home that it is open here.

        incarnation: of a coordinator that was started in the middle of it, 32 bits: it asks for a Resync.
        """
        self.log.incarnation = incarnation
        rejoin = None if incarnation is None else Rejoin(incarnation=incarnation)
        greetings = {name: rejoin or self.routes.make_greeting(name) for name in self.peers}
        sends = self._begin(*self.routes.listeners)
        return sends + [self._send(name, body, now_s) for name, body in greetings.items()]

    def restart(self, role: ActorKind) -> list[Send]:
        """Give the session as it stands to an actor of this party that was restarted, or may lack a part of it."""
        if role not in self.routes.listeners:
            return []
        sends = self._begin(role)
        if role == "decoder":
            sends.append(self._to_decoder(self.log.make_resync()))
            sends += self._lead_again()
        elif role == "aggregator":
            self.ballots.reopen()
            sends += self._ask()
        return sends

    def receive(self, message: LocalMessage, now_s: float) -> list[Send]:
        """A message of an own actor."""
        if self.is_over:
            return []
        match message:
            case Local():
                cited = self.report.cite(message.attributions) if self.end.reason is None else []
                return cited + self._on_own_vote(message.body, now_s)
            case VerifyResult():
                return self._on_result(message, now_s)
            case DecoderReady():
                return self._on_ready(message, now_s)
            case DecoderFailed():
                return self.fail(message.reason, now_s, message.fault)
            case Estimate():
                return self.report.emit(make_estimate_event(message)) if self.end.reason is None else []
            case _:
                assert_never(message)

    def receive_frame(
        self, frame: LinkFrame, now_s: float, source: str = "", waited_s: float = 0.0
    ) -> list[Send]:
        """A frame of a peer, by default the only one. waited_s: how long ago it arrived, before the query.

        Raises ProtocolError, one sentence, where that peer may not send such a frame; it changes nothing, and the
        session continues.
        """
        if self.is_over:
            return []
        source = source or next(iter(self.peers), "a peer")
        self.routes.check(source, frame.body)
        peer = self.peers[source]
        self.routes.check_view(source, frame.view, peer.view)
        self.report.measure(peer.receive(frame, now_s, waited_s), peer.round_trips.take_bytes_per_s())
        sends = peer.answer_probe(frame.body, self.prefix, now_s) + self._act_on(peer, frame, now_s)
        return sends + peer.release(self.prefix, now_s)

    def tick(self, now_s: float) -> list[Send]:
        """Timers: reminders, resend, heartbeat, loss of a peer, lingering. Call every 50 ms or so."""
        if self.is_over:
            return []
        if not self.peers:
            return self._remind(now_s)
        for peer in self.peers.values():
            peer.liveness.tick(self._owed_by(peer), now_s)
        if self._is_abandoned(now_s):
            return self._free()
        sends = self.lead_on(now_s - self.log.committed_s)
        if self.decides_here and any(map(self._owed_by, self.peers.values())):
            self.ballots.limit_wait(self.prefix.digest, self.log.opened_s, self.log.committed_s, now_s)
        for peer in self.peers.values():
            if not peer.is_finished:
                sends += peer.due(self.prefix, now_s, self._unacknowledged(peer))
        return sends + self._check_peers(now_s) + self._ask() + self._remind(now_s)

    def resend_all(self, now_s: float, name: str = "") -> list[Send]:
        """Over a new connection to a peer (default: all) send at once what it may lack, the query itself included."""
        sends = list[Send]()
        for peer in self.peers.values():
            if name in ("", peer.name) and not self.is_over:
                sends += peer.resend_all(self._unacknowledged(peer, is_new=True), self.prefix, now_s)
        return sends

    def cancel(self, now_s: float) -> list[Send]:
        """The user gave the query up: every party stops and frees it."""
        if self.is_over:
            return []
        if self.end.reason is not None:  # a finished peer still answers an authority that has not
            return self._free() if self.routes.is_authority else []
        return self._give_up(_CANCELLED, now_s)

    def fail(self, reason: str, now_s: float, fault: Fault = FAILED) -> list[Send]:
        """This party cannot go on: tell the user and the peers."""
        if self.is_over or self.end.reason is not None:
            return []
        self.end.fault = fault
        public_fault = FAILED if self.routes.is_home else fault  # it may say what is not there
        public = Cancel(reason=public_reason(reason, fault, self.routes), fault=public_fault)
        return self._give_up(public, now_s, reason)

    # ---- own actors --------------------------------------------------------------------------------------------

    def _begin(self, *roles: ActorKind) -> list[Send]:
        return [Send(role, Begin(session=self.spec.session, spec=self.spec)) for role in roles]

    def _to_decoder(self, body: Vote | Verdict | Resync) -> Send:
        is_last, view = self.end.reason is not None, self.log.adopted_view
        return Send("decoder", Local(session=self.spec.session, body=body, view=view, is_last=is_last))

    def _remind(self, now_s: float) -> list[Send]:
        """Give the session again to an own actor that owes the same for too long: a message may have been lost. Each
        wait is twice the one before, so that an actor that is only slow is not kept from its work."""
        here, sends = (self.log.view, self.prefix.digest), list[Send]()
        owes: dict[ActorKind, bool] = {
            "decoder": self.prefix.digest not in self.ballots.own,
            "aggregator": (self.ballots.pending or ())[:2] == here,
        }
        for role, is_owing in owes.items():
            debt, backoff = self._reminders.get(role, (None, None))
            if not is_owing or self.end.reason is not None:
                self._reminders.pop(role, None)
            elif backoff is None or debt != here:
                self._reminders[role] = here, Backoff(now_s, FIRST_REMINDER_S, MAX_REMINDER_S)
            elif backoff.take_due(now_s):
                sends += self.restart(role)
        return sends

    def _on_own_vote(self, vote: Vote, now_s: float) -> list[Send]:
        """Own votes on a proposal that are here already go out as they did before."""
        if self.end.reason is not None or vote.step + len(vote.tokens) < len(self.prefix):
            return []
        num_before = len(self.ballots.own)
        self.ballots.hold(self.party, vote, self.prefix, now_s - self.log.opened_s)
        sends = self._show(now_s)
        if len(self.ballots.own) > num_before or vote.num_prefixes == 0:
            public = self._make_public(self.ballots.restore(vote) if self.routes.follows_proposals else vote)
            may_count = self.routes.may_count(public)
            sends += self._post(self.routes.votes_go_to, public, now_s) if may_count else []
        return sends + self._advance(now_s)

    def _on_ready(self, ready: DecoderReady, now_s: float) -> list[Send]:
        """Tell the client, who is at home, of this party's documents."""
        if (sources := self.report.note_sources(ready)) is None:
            return []
        if (nearer := self.routes.toward_home) is None:
            return self.report.emit_sources(self.party, sources, ready.scores)
        return self._post((nearer,), sources, now_s)

    def _show(self, now_s: float) -> list[Send]:
        if self.end.reason is not None:
            return []
        return self.report.show(self.ballots.drafts, now_s - self.log.opened_s)

    # ---- leading the own decoder, where it votes on another party's proposals -----------------------------------

    def lead(self, source: str, proposal: Vote) -> list[Send]:
        """Have the own decoder vote on a peer's proposal that was taken in, if it follows the committed tokens."""
        if not self.routes.follows_proposals or not self.ballots.continues(source, proposal, self.prefix):
            return []
        return [self._to_decoder(proposal)]

    def lead_on(self, waited_s: float) -> list[Send]:
        """Ask for a vote without a proposal, at once where nobody proposes. waited_s: since the last commit."""
        digest = self.prefix.digest
        may_vote = self.routes.follows_proposals and self.end.reason is None and self.log.is_synced
        is_due = may_vote and (waited_s > PROPOSAL_WAIT_S or self.decides_alone)
        if not is_due or digest in self.ballots.own or self._asked == digest:
            return []
        self._asked = digest
        return [self._to_decoder(Vote(step=len(self.prefix), digest=digest))]

    def _lead_again(self) -> list[Send]:
        self._asked = b""
        sends = self._send_alone()
        for drafter in self.routes.roles.drafters if self.routes.follows_proposals else ():
            sends += map(self._to_decoder, self.ballots.votes_of(drafter))
        return sends

    def _send_alone(self) -> list[Send]:
        """To the own decoder, if it drafts for others: whether it continues without them."""
        alone = Alone(session=self.spec.session, is_alone=self.decides_alone)
        return [Send("decoder", alone)] if self.routes.leads else []

    # ---- ballots -----------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> list[Send]:
        """Commit the peers' verdicts in step order, then ask for the next one if this party decides."""
        sends = self._show(now_s)
        while self.end.reason is None and (verdict := self.log.take_next()) is not None:
            decider = self.routes.other_decider
            try:
                self.routes.check_turn(decider, verdict, len(self.prefix), self.log.decider)
            except ProtocolError as error:  # it came before its turn, which then was not its sender's
                self.refusals.append(str(error))
                continue
            sends += self._commit(verdict, None, now_s)
            if len(self.prefix) < verdict.step + len(verdict.tokens):
                self.refusals.append(
                    _BEHIND.format(decider, len(verdict.tokens), verdict.step, len(self.prefix))
                )
        return sends + self._ask()

    def _ask(self) -> list[Send]:
        """Send the next ballot to the aggregator, if there is one and it is not there yet. Safe to call at any time."""
        if self.end.reason is not None or not self.log.is_synced or not self.decides_here:
            return []
        ballot = self.ballots.take_ballot(self.log.view, self.prefix, self.present)
        sends = self.lead_on(0.0)
        return sends if ballot is None else [*sends, Send("aggregator", ballot)]

    def _drop_unreadable(self, result: VerifyResult, now_s: float) -> list[Send]:
        self.refusals.append(result.problem)
        problem, sends = Problem(result.problem, is_stall=True), list[Send]()
        for name in map(self.routes.topology.name, result.unreadable):
            self.ballots.drop(name, result.digest)
            sends += self._part_with(self.peers[name], problem, now_s)
        return sends + self._advance(now_s)

    def _ask_for_more(self, undecided: VerifyResult, now_s: float) -> list[Send]:
        digest, sends = undecided.digest, list[Send]()
        for voter, depth in zip(undecided.voters, undecided.depths, strict=True):
            peer = self.peers.get(self.routes.topology.name(voter))
            if peer is None:
                continue
            payload = self.ballots.payload_of(peer.name, digest)
            if self.race_votes.ask(peer.name, peer.view, digest, payload, depth):
                self.report.count("num_list_requests")
                request = ListRequest(step=undecided.step, digest=digest, depth=depth)
                sends.append(peer.post(request, self.prefix, now_s))
        return sends

    def _make_public(self, vote: Vote) -> Vote:
        if self.race_votes.are_cut and any(not self.peers[name].is_lost for name in self.routes.votes_go_to):
            reached = min(peer.num_committed for peer in self.peers.values() if not peer.is_lost)
            return self.race_votes.cut(vote, self.prefix, self.ballots.own, reached)
        return self.routes.make_public(vote)

    # ---- verdicts and commits ----------------------------------------------------------------------------------

    def _on_result(self, result: VerifyResult, now_s: float) -> list[Send]:
        if not self.ballots.is_pending(result):
            return []
        if result.unreadable:
            return self._drop_unreadable(result, now_s)
        if self.end.reason is not None or result.digest != self.prefix.digest:
            return []
        if not result.tokens:
            return self._ask_for_more(result, now_s)
        tokens, counts = [*self.prefix.tokens, *result.tokens], range(1, len(result.tokens))
        ends = (count for count in counts if self._check_stop(tokens[: len(self.prefix) + count]) is not None)
        num_tokens = next(ends, len(result.tokens))
        verdict = self.log.make_verdict(result, num_tokens)
        if self.spec.rules.has_race_lists and len(result.voters) > 1:
            # a later step that needs a longer list ends the result before it, and begins the next
            is_escalated = self.race_votes.has_asked(result.digest)
            self.report.count("num_escalated", int(is_escalated))
            self.report.count("num_certified", num_tokens - is_escalated)
        last_voters = self.ballots.find_last_voters(self.prefix, verdict.tokens, self.present)
        addressed = self.routes.address(verdict, self.lost, last_voters)
        sends = self._commit(verdict, result, now_s)
        for names, body in addressed:
            sends = [*self._post(names, body, now_s), *sends]
        return sends + self._advance(now_s)

    def _commit(self, verdict: Verdict, result: VerifyResult | None, now_s: float) -> list[Send]:
        """Commit a verdict up to the end of the answer: the own one, made of `result`, or a peer's."""
        num_before = len(self.prefix)
        sends = self.report.note_losses(verdict, num_before)
        for position in range(len(verdict.tokens)):
            if self.end.reason is not None:  # a peer's verdict follows the end
                break
            sends += self._commit_token(verdict, position, result, now_s)
        num_tokens = len(self.prefix) - num_before
        order = self._to_decoder(replace(verdict, tokens=verdict.tokens[:num_tokens], tail=()))
        return [order, *sends, *self._complete(now_s)]

    def _commit_token(
        self, verdict: Verdict, position: int, result: VerifyResult | None, now_s: float
    ) -> list[Send]:
        step, digest, epochs = len(self.prefix), self.prefix.digest, tuple(self.log.epochs.values())
        drafts, voters = self.ballots.drafts_on(digest), self.present
        shares = self.ballots.shares_on(digest, voters, is_own=result is not None)
        last_voter = self.routes.last_voter(verdict, step) or self.ballots.find_last_voter(digest, voters)
        self.log.append(verdict, position, now_s)
        self.ballots.advance(self.prefix)
        for peer in self.peers.values():
            peer.deliveries.drop_dead(self.ballots.own, len(self.prefix))
        self.end.reason = self._check_stop(self.prefix.tokens)
        sends = self.report.commit(
            verdict,
            position,
            result=result,
            prefix=self.prefix,
            decided_by=self.party if result is not None else self.routes.other_decider,
            drafts=drafts,
            epochs=epochs,
            is_degraded=bool(self.lost),
            is_late=self.ballots.is_late(digest),
            is_last=self.end.reason is not None,
            shares=shares,
            committed_s=now_s - self.log.opened_s,
            last_voter=last_voter,
        )
        sends += self._show(now_s)
        if position + 1 < len(verdict.tokens):
            return sends
        return sends + self._hand_over(step + 1, self.routes.topology.name(verdict.next_decider))

    def _hand_over(self, step: int, decider: str) -> list[Send]:
        if decider == self.log.decider:
            return []
        self.log.decider = decider
        return self.report.emit(PlacementEvent(step=step, aggregator=decider))

    # ---- frames of a peer --------------------------------------------------------------------------------------

    def _act_on(self, peer: Peer, frame: LinkFrame, now_s: float) -> list[Send]:
        body = frame.body
        if peer.is_lost and not self.routes.is_authority:
            return self.turn_away(peer, body, now_s)
        match body:
            case Cancel():
                return self._on_cancel(peer, body, now_s) + self._ask()
            case Done(is_reply=True):
                return self._on_last_word(peer, now_s) + self._ask()
            case Resync():
                return self._adopt(peer, frame.view, body, now_s) + self._ask()
            case Rejoin():
                return self._on_rejoin(peer, body, now_s) + self._ask()
        if peer.is_lost:
            may_return = peer.liveness.may_return(makes_progress=isinstance(body, PROGRESS))
            return self._resync(peer, now_s) + self._ask() if may_return else []
        if frame.view != peer.view or not self.log.is_synced:
            return []
        self.routes.check_turn(peer.name, body, len(self.prefix), self.log.decider)
        if peer.claims.contradict(frame, self.prefix, is_complete=self.end.reason is not None):
            return self._on_divergence(peer, frame, now_s) + self._ask()
        # A peer that is ahead may be on another branch: a proposal that is not committed here may still be needed.
        peer.acknowledge(frame, min(frame.committed, len(self.prefix)), now_s)
        return self._take_in(peer, frame, now_s)

    def _take_in(self, peer: Peer, frame: LinkFrame, now_s: float) -> list[Send]:
        """Take in what a peer decided, proposed or voted. What is too far ahead is not acknowledged: it comes again."""
        body, opened_s, sends = frame.body, self.log.opened_s, list[Send]()
        match body:
            case Done():
                return self._advance(now_s) + self._on_done(peer, frame, now_s) + self._ask()
            case ListRequest():
                peer.deliveries.receive(frame.number, now_s)
                longer = self.race_votes.answer(body, peer.view)
                if longer is None:
                    return []
                peer.deliveries.supersede(longer)
                return [peer.post(longer, self.prefix, now_s)]
            case Sources():
                is_kept, sends = True, self._on_sources(peer, body, now_s)
            case Verdict():
                is_kept = self.log.hold(body)
            case Vote():
                is_kept = self.ballots.hold(peer.name, body, self.prefix, now_s - opened_s)
                sends = self.lead(peer.name, body)
            case _:
                is_kept = False  # the header says it all
        peer.liveness.has_given |= isinstance(body, PROGRESS)
        if is_kept:
            peer.deliveries.receive(frame.number, now_s)
        return sends + self._advance(now_s)

    def _on_sources(self, peer: Peer, sources: Sources, now_s: float) -> list[Send]:
        """Documents of a peer, or of a party behind it: for the client here, or on towards home."""
        owner, nearer = self.routes.topology.name(sources.party), self.routes.toward_home
        if not self.report.may_pass_on(owner):
            return []
        if nearer is None:
            return self.report.emit_sources(owner, sources)
        return [] if peer.name == nearer else self._post((nearer,), sources, now_s)

    # ---- two parties on one sequence of tokens -----------------------------------------------------------------

    def _on_divergence(self, peer: Peer, frame: LinkFrame, now_s: float) -> list[Send]:
        """The authority starts a new view; its peer shows where the two differ: at the authority's count, if that is
        behind, since it cannot judge a greater one."""
        if not self.routes.is_authority:
            shown = Prefix(self.spec.session, self.prefix.tokens[: frame.committed])
            return [peer.send(Heartbeat(), shown, now_s)]
        self.report.count("num_divergences")
        return self._resync(peer, now_s)

    def _on_rejoin(self, peer: Peer, rejoin: Rejoin, now_s: float) -> list[Send]:
        """Authority: the peer's coordinator was restarted. One Resync per restart, however often it asks."""
        if not self.routes.is_authority:
            return []
        is_new = not peer.claims.note_restart(rejoin.incarnation)
        is_due = peer.liveness.may_return(makes_progress=is_new) if peer.is_lost else is_new
        return self._resync(peer, now_s) if is_due else []

    def _resync(self, peer: Peer, now_s: float) -> list[Send]:
        """Authority: a new view starts from what is committed here."""
        sends = self.take_back(peer)
        self.ballots.reopen()
        self.log.verdicts.clear()
        sends += self._hand_over(len(self.prefix), self.spec.rules.first_decider)
        self.log.view += 1
        peer.start_view(self.log.view, 0, now_s)
        self.report.count("num_resyncs")
        sends += [peer.send(body, self.prefix, now_s) for body in self._unacknowledged(peer)]
        return sends + self.post_again(peer, now_s)

    def _adopt(self, peer: Peer, view: int, resync: Resync, now_s: float) -> list[Send]:
        """Take over the authority's committed tokens; at home none are taken back, for the client has seen them."""
        if self.routes.is_home:
            reason = f"{at_start(peer.name)} has other tokens than those shown here; ask again."
            return self.fail(reason, now_s)
        if view <= peer.view:
            return [peer.send(Heartbeat(), self.prefix, now_s)]
        self.log.adopt(resync.tokens, self.party, view, self.routes.topology.name(resync.decider))
        self.ballots.reopen()
        self.ballots.adopt(self.prefix)
        self.end.reason, self.end.finished_s = self._check_stop(self.prefix.tokens), now_s
        for each in self.peers.values():
            each.is_finished = False
        peer.start_view(view, len(self.prefix), now_s)
        self.report.count("num_resyncs")
        is_last = self.end.reason is not None
        sends = [self._to_decoder(self.log.make_resync()), peer.send(Heartbeat(), self.prefix, now_s)]
        return sends + (self._complete(now_s) if is_last else self.post_again(peer, now_s))

    def post_again(self, peer: Peer, now_s: float) -> list[Send]:
        """A new view may need every own vote that is kept: here it may count before the decoder emits it again."""
        sources, is_nearer = self.report.own_sources, peer.name == self.routes.toward_home
        bodies: list[Numbered] = [sources] if sources is not None and is_nearer else []
        if peer.name in self.routes.votes_go_to:
            votes = map(self._make_public, self.ballots.votes_of(self.party))
            bodies += [vote for vote in votes if self.routes.may_count(vote)]
        return [peer.post(body, self.prefix, now_s) for body in bodies]

    # ---- what goes to a peer -----------------------------------------------------------------------------------

    def _unacknowledged(self, peer: Peer, *, is_new: bool = False) -> list[LinkBody]:
        """Bodies to repeat, besides proposals and verdicts, until the peer shows that it has it. is_new: it may know
        nothing of the query."""
        bodies: list[LinkBody] = []
        may_lack_all = not peer.has_spoken or (is_new and self.end.reason is None)
        if peer.name != self.routes.toward_home and may_lack_all:
            bodies.append(self.routes.make_open(peer.name))
        is_behind = peer.seen_view < peer.view and not peer.is_lost
        if self.routes.is_authority and is_behind and peer.has_spoken:
            bodies.append(self.log.make_resync())
        if self.log.incarnation is not None:
            bodies.append(Rejoin(incarnation=self.log.incarnation))
        if self.end.reason is not None:
            bodies.append(Done(is_reply=False))
        return bodies

    def _send(self, name: str, body: LinkBody, now_s: float) -> Send:
        return self.peers[name].send(body, self.prefix, now_s)

    def _post(self, names: Sequence[str], body: Numbered, now_s: float) -> list[Send]:
        """To these peers, but for those that are lost: a Resync brings them up when they return.

        Where a party continues alone, its verdicts wait while the link is full, but for the last, and so do
        proposals to it.
        """
        goes_on_at, sends = self.spec.rules.goes_on_at, list[Send]()
        for peer in (self.peers[name] for name in names if not self.peers[name].is_lost):
            match body:
                case Verdict():
                    may_wait = goes_on_at(self.party) and self.end.reason is None
                    sends += peer.post_verdict(body, self.prefix, now_s, may_wait=may_wait)
                case Vote():
                    sends += peer.post_vote(body, self.prefix, now_s, may_wait=goes_on_at(peer.name))
                case _:
                    sends.append(peer.post(body, self.prefix, now_s))
        return sends

    # ---- the end -----------------------------------------------------------------------------------------------

    def _complete(self, now_s: float) -> list[Send]:
        """Tell the client, and all peers that have not said that they agree."""
        if self.end.reason is None:
            return []
        sends = self._finish(self.end.reason, now_s)
        for peer in self.peers.values():
            peer.clear_proposals()
            is_done = peer.is_lost or peer.claims.agree(self.prefix)
            done = Done(is_reply=False)
            sends += self._dismiss(peer, now_s) if is_done else [self._send(peer.name, done, now_s)]
        return sends + self._free_if_finished()

    def _on_done(self, peer: Peer, frame: LinkFrame, now_s: float) -> list[Send]:
        """The peer has committed everything; once this party has the same, nothing is owed to anybody."""
        peer.claims.complete(frame)
        if self.is_over or self.end.reason is None:
            return []
        if not peer.claims.agree(self.prefix):
            return self._on_divergence(peer, frame, now_s)
        return self._dismiss(peer, now_s) + self._free_if_finished()

    def _dismiss(self, peer: Peer, now_s: float) -> list[Send]:
        peer.is_finished = True
        return [self._send(peer.name, self.end.last_word(peer, self.party), now_s)]

    def turn_away(self, peer: Peer, body: LinkBody, now_s: float) -> list[Send]:
        """An authority is back after the home has gone on without it."""
        word = self.end.last_word(peer, self.party)
        return [] if is_last_word(body) else [self._send(peer.name, word, now_s)]

    def make_final_frames(self, now_s: float) -> dict[str, LinkFrame]:
        """The frames by which a driver answers each peer for this session once it is freed."""
        last_words = {name: self.end.last_word(peer, self.party) for name, peer in self.peers.items()}
        return {name: self._send(name, body, now_s).message for name, body in last_words.items()}

    def _give_up(self, body: Cancel, now_s: float, error: str | None = None) -> list[Send]:
        """End the query early, and tell all peers that have not done so themselves. error: None: it was cancelled."""
        self.end.cancel = body
        sends = [self._send(name, body, now_s) for name, peer in self.peers.items() if not peer.is_finished]
        return sends + self._finish("failed" if error else "cancelled", now_s, error) + self._free()

    def _finish(self, reason: StopReason, now_s: float, error: str | None = None) -> list[Send]:
        self.end.reason, self.end.finished_s = reason, now_s
        done = DoneEvent(reason=reason, statistics=self.statistics, error=error, fault=self.end.fault)
        return [*self.report.void(len(self.prefix)), *self.report.emit(done)]

    def _free(self) -> list[Send]:
        if self.is_over:
            return []
        self.end.is_over = True
        return [Send(role, End(session=self.spec.session)) for role in self.routes.listeners]

    def _free_if_finished(self) -> list[Send]:
        return self._free() if all(peer.is_finished for peer in self.peers.values()) else []

    def _is_abandoned(self, now_s: float) -> bool:
        """Whether the peers have been silent, or unfinished, for too long to be waited for."""
        nearer = self.routes.toward_home
        if nearer is not None and self.peers[nearer].liveness.silence_s(now_s) > ABANDONED_S:
            return True
        waited_s = 0.0 if self.end.reason is None else now_s - self.end.finished_s
        may_end = nearer is None or self.routes.is_authority
        return may_end and all(
            peer.is_finished
            or min(waited_s, peer.liveness.silence_s(now_s)) > LINGER_S
            or waited_s > ABANDONED_S
            for peer in self.peers.values()
        )

    def _owed_by(self, peer: Peer) -> Hashable:
        """Names what the next token waits for, where this peer alone can send it: a vote, more of one, or a verdict;
        else None."""
        digest, ballots = self.prefix.digest, self.ballots
        voters = self.spec.rules.needed(len(self.prefix), self.present)
        if self.end.reason is not None or peer.is_lost or not self.log.is_synced:
            return None
        if self.party in voters and ballots.payload_of(self.party, digest) is None:
            return None  # the own vote is missing, too
        payload = ballots.payload_of(peer.name, digest) or b""
        is_short = not payload or self.race_votes.awaits_more(peer.name, peer.view, digest, payload)
        is_owed = is_short and peer.name in voters if self.decides_here else peer.name == self.log.decider
        return (self.log.view, digest, len(payload)) if is_owed else None

    def _check_peers(self, now_s: float) -> list[Send]:
        sends: list[Send] = []
        for peer in self.peers.values():
            silence_limit_s = peer.silence_limit_s(self.spec.peer_loss_margin_s)
            has_others = self.routes.is_between(peer.name)
            problem = peer.liveness.find_problem(
                silence_limit_s, self.spec.peer_stall_s, now_s, has_others_behind=has_others
            )
            if problem is not None:
                sends += self._part_with(peer, problem, now_s)
        return sends

    def _part_with(self, peer: Peer, problem: Problem, now_s: float) -> list[Send]:
        """By `on_peer_loss` go on without a peer that is farther from home, fail, or wait for it."""
        can_lose = peer.name != self.routes.toward_home and self.end.reason is None and not peer.is_lost
        if not can_lose or self.spec.on_peer_loss == "wait":
            return []
        if self.spec.on_peer_loss == "fail":
            return self.fail(_LOST.format(problem.sentence.removesuffix(".")), now_s, _lost(peer))
        reason = problem.sentence if problem.is_stall else None
        return self.without(peer, reason, is_stall=problem.is_stall)

    def _on_cancel(self, peer: Peer, cancel: Cancel, now_s: float) -> list[Send]:
        """A peer gave the session up. Refusing it in mid answer ends its own part alone, unless for the grammar."""
        concerns_all = len(self.prefix) == 0 or cancel.fault.option == "grammar"
        goes_on = self.spec.on_peer_loss == "continue" and not (cancel.fault.is_refusal and concerns_all)
        is_nearer = peer.name == self.routes.toward_home
        if goes_on and not is_nearer and self.end.reason is None:
            return self.without(peer, cancel.reason)
        peer.is_finished = True
        if is_nearer:
            return self._give_up(_CANCELLED, now_s)
        if self.end.reason is not None:
            return self._free_if_finished()
        because = f"{at_start(peer.name)} gave the query up: {cancel.reason}"
        return self.fail(because, now_s, replace(cancel.fault, party=peer.name))

    def _on_last_word(self, peer: Peer, now_s: float) -> list[Send]:
        """A peer has freed the session; an authority that is not done was silent for too long."""
        is_nearer = peer.name == self.routes.toward_home
        if is_nearer and (self.end.reason is None or not self.routes.is_authority):
            return self._free()
        if self.end.reason is not None:
            peer.is_finished = True
            return self._free_if_finished()
        if self.spec.on_peer_loss != "continue":
            return self.fail(_FREED.format(at_start(peer.name), ABANDONED_S), now_s, _lost(peer))
        return self.without(peer)

    def without(self, peer: Peer, reason: str | None = None, *, is_stall: bool = False) -> list[Send]:
        """Go on without a peer: from the next step on the votes of the others count alone, until it is back."""
        if peer.is_lost:
            return []
        peer.liveness.lose(is_stall=is_stall)
        self.ballots.reopen()
        self.log.verdicts.clear()  # they decide steps after one that is now decided without the peer
        peer.deliveries.sent.clear()  # a Resync brings the peer up when it returns
        event = PeerEvent(step=len(self.prefix), is_alone=True, reason=reason, party=peer.name)
        return [*self.report.emit(event), *self._send_alone()]

    def take_back(self, peer: Peer) -> list[Send]:
        """A lost peer is back: its votes count again from the next step on."""
        if not peer.is_lost:
            return []
        peer.liveness.take_back()
        event = PeerEvent(step=len(self.prefix), is_alone=False, party=peer.name)
        return [*self.report.emit(event), *self._send_alone()]


def public_reason(reason: str, fault: Fault, routes: Routes) -> str:
    """The reason that peers hear of a failure: the sentence only where its code promises that it holds Tandem's own
    words, and never from a private party."""
    is_private = routes.party in routes.topology.private
    if is_private or fault.code is Code.FAILED:
        return f"{at_start(routes.party)} could not go on{'' if is_private else '; see its log'}."
    return reason


def is_last_word(body: LinkBody) -> bool:
    """Whether nothing is to be said to this any more."""
    return isinstance(body, Cancel) or (isinstance(body, Done) and body.is_reply)


def _lost(peer: Peer) -> Fault:
    return Fault(code=Code.LOST, party=peer.name)
