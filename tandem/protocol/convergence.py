"""Both parties on one sequence of tokens: views, divergence, Resync and Rejoin.

The device is the authority: its committed tokens win. The cloud only shows where it differs, and adopts.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.events import PlacementEvent
from tandem.protocol.ballots import BallotBox
from tandem.protocol.lifecycle import Lifecycle, StopCheck
from tandem.protocol.link import PeerLink
from tandem.protocol.log import MAX_AHEAD, CommittedLog
from tandem.protocol.messages import (
    Adopt,
    Commit,
    Done,
    Heartbeat,
    LinkBody,
    LinkFrame,
    Open,
    Rejoin,
    Resync,
    Verdict,
)
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.report import Reporter
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party


class Convergence:
    """What one party knows of the other's committed tokens, and what it does when they differ.

    Invariants: the device's tokens never change, and only it starts a view; the cloud enters a view only by adopting.
    Claims are digests of counts that are not reached here yet; each is compared when it is.
    """

    def __init__(
        self,
        spec: SessionSpec,
        party: Party,
        log: CommittedLog,
        ballots: BallotBox,
        link: PeerLink,
        reporter: Reporter,
        lifecycle: Lifecycle,
    ) -> None:
        self.incarnation: int | None = None  # cloud: it was restarted and waits for a Resync
        self.adopted_view = 0  # cloud: the view of the last Resync that was adopted
        self.claims: dict[int, bytes] = {}  # the peer's digests, by count of tokens
        self._spec, self._party = spec, party
        self._log, self._ballots, self._link = log, ballots, link
        self._reporter, self._lifecycle = reporter, lifecycle
        self._peer_done: tuple[int, bytes] | None = None  # the peer's whole answer: count and digest
        self._answered: set[int] = set()  # device: incarnations that a Resync has answered

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
        """The device starts a new view; the cloud shows where the two differ.

        A cloud that is ahead shows the count that the device has reached, since the device cannot judge a greater one.
        """
        if self._party is Party.CLOUD:
            shown = Prefix(self._spec.session, self._log.prefix.tokens[: frame.committed])
            return [self._link.send(Heartbeat(), shown, now_s)]
        self._reporter.count("num_divergences")
        return self.resync(now_s)

    def on_rejoin(self, rejoin: Rejoin, now_s: float) -> list[Send]:
        """Device: the cloud's coordinator was restarted. One Resync per restart, however often it asks."""
        is_answered = rejoin.incarnation in self._answered and not self._lifecycle.peer_lost
        if self._party is Party.CLOUD or is_answered:
            return []
        self._answered.add(rejoin.incarnation)
        return self.resync(now_s)

    def on_done(self, frame: LinkFrame, now_s: float) -> list[Send]:
        """The peer has committed everything; once this party has the same, nothing is owed to anybody."""
        self._peer_done = frame.committed, frame.committed_digest
        if self._lifecycle.is_over or self._lifecycle.reason is None:
            return []
        if not self.peer_agrees():
            return self.on_divergence(frame, now_s)
        return [self._link.send(Done(is_reply=True), self._log.prefix, now_s), *self._lifecycle.free()]

    def peer_agrees(self) -> bool:
        """Whether the peer has said that its whole answer is this one."""
        return self._peer_done == (len(self._log.prefix), self._log.prefix.digest)

    def resync(self, now_s: float) -> list[Send]:
        """Device: a new view starts from what is committed here."""
        sends = self._lifecycle.rejoin_peer()
        self._forget_old_view()
        if self._log.aggregator is not self._spec.first_aggregator:
            self._log.aggregator = self._spec.first_aggregator
            placement = PlacementEvent(step=len(self._log.prefix), aggregator=self._log.aggregator)
            sends += self._reporter.emit(placement)
        self._link.start_view(self._link.view + 1, 0, now_s)
        self._reporter.count("num_resyncs")
        sends += [self._link.send(body, self._log.prefix, now_s) for body in self.unacknowledged()]
        return sends + self.post_held(now_s)

    def adopt(self, view: int, resync: Resync, check_stop: StopCheck, now_s: float) -> list[Send]:
        """Cloud: take over the device's committed tokens."""
        log = self._log
        if self._party is Party.DEVICE or view <= self._link.view:
            return [self._link.send(Heartbeat(), log.prefix, now_s)]
        log.adopt(resync.tokens, self._party)
        log.aggregator = resync.aggregator
        self._forget_old_view()
        self._ballots.adopt(log.prefix)
        self.incarnation = None
        self.adopted_view = view
        self._lifecycle.adopt(check_stop(log.prefix.tokens), now_s)
        self._link.start_view(view, len(log.prefix), now_s)
        self._reporter.count("num_resyncs")
        sends = [Send("decoder", self.make_adopt()), self._link.send(Heartbeat(), log.prefix, now_s)]
        if self._lifecycle.reason is not None:
            return [*sends, *self._lifecycle.complete(now_s, peer_agrees=self.peer_agrees())]
        return sends + self.post_held(now_s)

    def post_held(self, now_s: float) -> list[Send]:
        """In a new view the peer may need every own proposal that is held here.

        It may be put to the vote here before the decoder emits it again.
        """
        prefix = self._log.prefix
        sources, is_home = self._reporter.own_sources, self._party is self._spec.home
        sends = [] if sources is None or is_home else [self._link.post(sources, prefix, now_s)]
        if self._spec.drafts_travel_from(self._party):
            sends += [self._link.post(proposal, prefix, now_s) for proposal in self._ballots.own.values()]
        return sends

    def make_open(self) -> Open:
        """What opens the session at the peer, to which the display at home does not matter."""
        spec = replace(self._spec.as_for(self._party.other), show_drafts=False)
        return Open(spec=spec.to_json())

    def make_adopt(self) -> Adopt:
        """All committed tokens, for the own decoder, which may not have heard of all of them."""
        return Adopt(
            session=self._spec.session,
            tokens=tuple(self._log.prefix.tokens),
            epoch=self._log.epochs[self._party],
            is_last=self._lifecycle.reason is not None,
            view=self.adopted_view,
        )

    def make_commit(self, verdict: Verdict) -> Commit:
        """One committed token, for the own decoder."""
        return Commit(
            session=self._spec.session,
            step=verdict.step,
            token=verdict.target,
            epoch=self._log.epochs[self._party],
            is_last=self._lifecycle.reason is not None,
            view=self.adopted_view,
        )

    def unacknowledged(self) -> list[LinkBody]:
        """What must be repeated, besides proposals and verdicts, until the peer shows that it has it."""
        bodies: list[LinkBody] = []
        if self._party is self._spec.home and not self._link.has_heard:
            bodies.append(self.make_open())
        is_behind = self._link.peer_view < self._link.view and not self._lifecycle.peer_lost
        if self._party is Party.DEVICE and is_behind and self._link.has_heard:
            bodies.append(Resync(aggregator=self._log.aggregator, tokens=tuple(self._log.prefix.tokens)))
        if self.incarnation is not None:
            bodies.append(Rejoin(incarnation=self.incarnation))
        if self._lifecycle.reason is not None:
            bodies.append(Done(is_reply=False))
        return bodies

    def _forget_old_view(self) -> None:
        self._ballots.reopen()
        self._log.verdicts.clear()
        self.claims.clear()
        self._peer_done = None
