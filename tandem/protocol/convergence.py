"""Two parties on one sequence of tokens: views, divergence, Resync and Rejoin.

The committed tokens of the authority win. Its peer only shows where it differs, and adopts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from tandem.messages import (
    Done,
    Heartbeat,
    LinkBody,
    LinkFrame,
    Open,
    Probe,
    Proposal,
    Rejoin,
    Resync,
    Votes,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.backlog import Numbered
from tandem.protocol.ballots import BallotBox, Entry
from tandem.protocol.lifecycle import Lifecycle, StopCheck
from tandem.protocol.link import PeerLink
from tandem.protocol.log import MAX_AHEAD, CommittedLog
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes
from tandem.topology import at_start

B = TypeVar("B", Proposal, Votes)

MAX_ANSWERED = 64
"""Restarts of a peer that are remembered; one before these would be answered again."""


class MakesPublic(Protocol):
    """Own proposals, or own votes, as the peers need them."""

    def __call__(self, body: B) -> B:
        """The same without what stays here."""


class Convergence:
    """What one party knows of one peer's committed tokens, and what it does when they differ.

    Invariants: the authority's tokens never change, and only it starts a view; a peer enters a view only by adopting.
    Claims are digests of counts that are not reached here yet; each is compared when it is.
    """

    def __init__(
        self,
        spec: SessionSpec,
        routes: Routes,
        log: CommittedLog,
        ballots: BallotBox,
        link: PeerLink,
        reporter: Reporter,
        lifecycle: Lifecycle,
        make_public: MakesPublic,
    ) -> None:
        """make_public: an own proposal, or own votes, as the peer needs them."""
        self.incarnation: int | None = None  # not of an authority: it was restarted and waits for a Resync
        self.claims: dict[int, bytes] = {}  # the peer's digests, by count of tokens
        self._spec, self._routes = spec, routes
        self._log, self._ballots, self._link = log, ballots, link
        self._reporter, self._lifecycle = reporter, lifecycle
        self._make_public = make_public
        self._peer_done: tuple[int, bytes] | None = None  # the peer's whole answer: count and digest
        self._answered: deque[int] = deque(maxlen=MAX_ANSWERED)  # incarnations that a Resync has answered

    def has_diverged(self, frame: LinkFrame) -> bool:
        """Two different digests for one count of committed tokens; a count not reached yet is remembered."""
        prefix = self._log.prefix
        if frame.committed > len(prefix):
            if self._lifecycle.reason is not None:
                return True  # both parties apply one stop rule
            if frame.committed <= len(prefix) + MAX_AHEAD:
                self.claims[frame.committed] = frame.committed_digest
        elif prefix.digests[frame.committed] != frame.committed_digest:
            return True
        reached = [count for count in self.claims if count <= len(prefix)]
        return any(self.claims.pop(count) != prefix.digests[count] for count in reached)

    def on_divergence(self, frame: LinkFrame, now_s: float) -> list[Send]:
        """The authority starts a new view; its peer shows where the two differ.

        A peer that is ahead shows the count that the authority has reached, since that cannot judge a greater one.
        """
        if not self._routes.is_authority:
            shown = Prefix(self._spec.session, self._log.prefix.tokens[: frame.committed])
            return [self._link.send(Heartbeat(), shown, now_s)]
        self._reporter.count("num_divergences")
        return self.resync(now_s)

    def on_rejoin(self, rejoin: Rejoin, now_s: float) -> list[Send]:
        """Authority: the peer's coordinator was restarted. One Resync per restart, however often it asks."""
        is_answered = rejoin.incarnation in self._answered and self._link.peer not in self._lifecycle.lost
        if not self._routes.is_authority or is_answered:
            return []
        self._answered.append(rejoin.incarnation)
        return self.resync(now_s)

    def on_done(self, frame: LinkFrame, now_s: float) -> list[Send]:
        """The peer has committed everything; once this party has the same, nothing is owed to anybody."""
        self._peer_done = frame.committed, frame.committed_digest
        if self._lifecycle.is_over or self._lifecycle.reason is None:
            return []
        if not self.peer_agrees():
            return self.on_divergence(frame, now_s)
        return self._lifecycle.agree(self._link.peer, now_s)

    def peer_agrees(self) -> bool:
        """Whether the peer has said that its whole answer is this one."""
        return self._peer_done == (len(self._log.prefix), self._log.prefix.digest)

    def resync(self, now_s: float) -> list[Send]:
        """Authority: a new view starts from what is committed here."""
        sends = self._lifecycle.rejoin_peer(self._link.peer)
        self._forget_old_view()
        if self._log.decider != self._spec.rules.first_decider:
            self._log.decider = self._spec.rules.first_decider
            sends += self._reporter.emit_placement(len(self._log.prefix), self._log.decider)
        self._log.view += 1
        self._link.start_view(self._log.view, 0, now_s)
        self._reporter.count("num_resyncs")
        sends += [self._link.send(body, self._log.prefix, now_s) for body in self.unacknowledged()]
        return sends + self.post_held(now_s)

    def adopt(self, view: int, resync: Resync, check_stop: StopCheck, now_s: float) -> list[Send]:
        """Take over the authority's committed tokens; at home none are taken back, for the client has seen them."""
        log = self._log
        if self._routes.is_home:
            reason = f"{at_start(self._link.peer)} has other tokens than those shown here; ask again."
            return self._lifecycle.fail(reason, now_s)
        if view <= self._link.view:
            return [self._link.send(Heartbeat(), log.prefix, now_s)]
        log.adopt(resync.tokens, self._routes.party)
        log.decider = self._routes.topology.name(resync.decider)
        self._forget_old_view()
        self._ballots.adopt(log.prefix)
        self.incarnation = None
        log.view = log.adopted_view = view
        log.is_known = True
        self._lifecycle.adopt(check_stop(log.prefix.tokens), now_s)
        self._link.start_view(view, len(log.prefix), now_s)
        self._reporter.count("num_resyncs")
        sends = [
            Send("decoder", log.make_adopt(is_last=self._lifecycle.reason is not None)),
            self._link.send(Heartbeat(), log.prefix, now_s),
        ]
        if self._lifecycle.reason is not None:
            return [*sends, *self._lifecycle.complete(now_s, {self._link.peer} if self.peer_agrees() else ())]
        return sends + self.post_held(now_s)

    def post_held(self, now_s: float) -> list[Send]:
        """In a new view the peer may need every own proposal and vote that is held here.

        It may be put to the vote here before the decoder emits it again.
        """
        prefix = self._log.prefix
        sources, is_nearer = self._reporter.own_sources, self._link.peer == self._routes.toward_home
        bodies: list[Numbered] = [sources] if sources is not None and is_nearer else []
        own, party = self._ballots.own, self._routes.topology.index(self._routes.party)
        if self._link.peer in self._routes.proposals_go_to:
            held = [self._make_public(proposal) for proposal in make_proposals(own, party)]
            bodies += [proposal for proposal in held if self._lifecycle.may_propose(proposal)]
        if self._link.peer in self._routes.votes_go_to:
            bodies += [self._make_public(make_votes(digest, entry, party)) for digest, entry in own.items()]
        return [self._link.post(body, prefix, now_s) for body in bodies]

    def make_greeting(self) -> LinkBody:
        """Opens the session at a peer that is farther from home, or shows one that is nearer that it is open here.

        Who will send one verdict after the other asks for an echo, so as to know in time whether the link is full.
        """
        if self._link.peer != self._routes.toward_home:
            return self._make_open()
        goes_on = self._spec.rules.goes_on_at(self._routes.party)
        return Probe(is_reply=False, padding=b"") if goes_on else Heartbeat()

    def _make_open(self) -> Open:
        """For the peer, to which the display at home does not matter."""
        spec = replace(self._spec.as_for(self._link.peer), show_drafts=False)
        return Open(spec=spec.to_json())

    def unacknowledged(self) -> list[LinkBody]:
        """What must be repeated, besides proposals and verdicts, until the peer shows that it has it."""
        bodies: list[LinkBody] = []
        if self._link.peer != self._routes.toward_home and not self._link.has_heard:
            bodies.append(self._make_open())
        is_behind = self._link.peer_view < self._link.view and self._link.peer not in self._lifecycle.lost
        if self._routes.is_authority and is_behind and self._link.has_heard:
            decider = self._routes.topology.index(self._log.decider)
            bodies.append(Resync(decider=decider, tokens=tuple(self._log.prefix.tokens)))
        if self.incarnation is not None:
            bodies.append(Rejoin(incarnation=self.incarnation))
        if self._lifecycle.reason is not None:
            bodies.append(Done(is_reply=False))
        return bodies

    def resend_all(self, now_s: float) -> list[Send]:
        """There is a new connection to the peer: whatever it has not acknowledged, at least a sign of life."""
        link, prefix = self._link, self._log.prefix
        due = link.resend(self.unacknowledged(), prefix, now_s) + link.resend_missing(prefix, now_s)
        return due or [link.send(Heartbeat(), prefix, now_s)]

    def _forget_old_view(self) -> None:
        self._ballots.reopen()
        self._log.verdicts.clear()
        self.claims.clear()
        self._peer_done = None


def make_proposals(own: Mapping[bytes, Entry], party: int) -> list[Proposal]:
    """One proposal for each token that a party proposes."""
    return [
        Proposal(
            party=party,
            step=entry.step,
            digest=digest,
            tokens=(entry.token,),
            payloads=() if entry.payload is None else (entry.payload,),
            log_weights=() if entry.log_weight is None else (entry.log_weight,),
            decode_us=entry.decode_us,
        )
        for digest, entry in own.items()
        if entry.token is not None
    ]


def make_votes(digest: bytes, entry: Entry, party: int) -> Votes:
    """The vote of a party on one prefix."""
    assert entry.payload is not None
    return Votes(
        party=party,
        step=entry.step,
        digests=(digest,),
        payloads=(entry.payload,),
        log_weights=() if entry.log_weight is None else (entry.log_weight,),
    )
