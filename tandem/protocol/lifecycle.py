"""How a session ends, and what this party does while a peer is gone."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import nan

from tandem.errors import FAILED, Code, Fault
from tandem.events import DoneEvent, PeerEvent, SessionStatistics, StopReason
from tandem.messages import Alone, Cancel, Done, End, LinkBody, LinkFrame, Proposal, Verdict
from tandem.modes.spec import SessionSpec
from tandem.protocol.backlog import Numbered
from tandem.protocol.ballots import BallotBox
from tandem.protocol.link import PeerLink
from tandem.protocol.log import CommittedLog
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes
from tandem.topology import at_start

StopCheck = Callable[[Sequence[int]], StopReason | None]
"""Why an answer of these tokens is complete, or None: end-of-sequence, stop string, length."""

LINGER_S = 10.0
"""Silence of a peer after which a finished authority no longer waits for its Done."""
ABANDONED_S = 60.0
"""Silence of the authority after which a peer frees a session, finished or not: the authority may still need it.
Also the longest that a finished authority waits for a peer that is alive but does not finish."""

_CANCELLED = Cancel(reason="The query was cancelled.", fault=Fault(code=Code.CANCELLED))
LISTENERS: tuple[ActorKind, ...] = ("decoder", "aggregator", "profiler", "scheduler")
_UNPLACED_LISTENERS: tuple[ActorKind, ...] = ("decoder", "aggregator")  # nothing to estimate


class Lifecycle:
    """Running, finished, over; and with or without each peer.

    Invariants: `is_over` is final, and nothing is owed to anybody from then on. Before that `reason` says why the
    answer is complete; only a Resync can take it back. A party follows the peer towards home and loses only others;
    from the step of the PeerEvent on, exactly the votes of those that are not lost count. A home that has lost the
    authority never takes it back. A solo session has no links.
    """

    def __init__(
        self,
        spec: SessionSpec,
        routes: Routes,
        log: CommittedLog,
        ballots: BallotBox,
        links: Mapping[str, PeerLink],
        reporter: Reporter,
    ) -> None:
        self.lost: set[str] = set()
        self.finished: set[str] = set()  # peers to which nothing is owed any more
        self.reason: StopReason | None = None
        self.is_over = False
        self._spec, self._routes = spec, routes
        self._log, self._ballots, self._links, self._reporter = log, ballots, links, reporter
        self._giving_up: Cancel | None = None  # what the peers hear of a query that was cancelled or failed
        self._finished_s = nan

    @property
    def is_solo(self) -> bool:
        """Whether only this party was asked: there is no peer."""
        return not self._links

    @property
    def listeners(self) -> tuple[ActorKind, ...]:
        """The actors of this party that hear of the session."""
        return LISTENERS if self._spec.rules.is_estimated(self._routes.party) else _UNPLACED_LISTENERS

    @property
    def decides_alone(self) -> bool:
        """Whether this party decides without any peer, be it lost or never asked."""
        return self.lost == self._links.keys()

    @property
    def decides_here(self) -> bool:
        """Whether this party decides the next step."""
        return self.decides_alone or self._spec.rules.all_decide or self._log.decider == self._routes.party

    @property
    def voters(self) -> tuple[str, ...]:
        """Whose votes decide the next step: all that are not lost; without any, this party goes on by itself."""
        there = (name for name in self._routes.roles.voters if name not in self.lost)
        return (self._routes.party,) if self.decides_alone else tuple(there)

    @property
    def statistics(self) -> SessionStatistics:
        """Counters so far."""
        return self._reporter.statistics(sum(link.num_resent_frames for link in self._links.values()))

    # ---- the end -----------------------------------------------------------------------------------------------

    def complete(self, now_s: float, agreeing: Container[str]) -> list[Send]:
        """The last token is committed. agreeing: peers that have said that their whole answer is this one."""
        assert self.reason is not None
        sends = self._end(self.reason, now_s)
        for peer, link in self._links.items():
            link.window.clear_proposals()
            if peer in agreeing or peer in self.lost:
                sends += self.dismiss(peer, now_s)
            else:
                sends += self.to_peer(peer, Done(is_reply=False), now_s)
        return sends + self._free_if_finished()

    def dismiss(self, peer: str, now_s: float) -> list[Send]:
        """The last word to a peer that has the whole answer, or is lost."""
        self.finished.add(peer)
        return self.to_peer(peer, self.last_word(peer), now_s)

    def agree(self, peer: str, now_s: float) -> list[Send]:
        """A peer has the whole answer; once all have it, the session is over."""
        return self.dismiss(peer, now_s) + self._free_if_finished()

    def cancel(self, now_s: float) -> list[Send]:
        """The user gave the query up: every party stops and frees it."""
        if self.is_over:
            return []
        if (
            self.reason is not None
        ):  # a finished peer goes on answering an authority that may not have finished
            return self.free() if self._routes.is_authority else []
        return self._give_up(_CANCELLED, now_s)

    def fail(self, reason: str, now_s: float, fault: Fault = FAILED) -> list[Send]:
        """This party cannot go on: tell the user and the peers.

        The sentence travels where its code promises that it holds Tandem's own words alone, and never from a private
        party.
        """
        if self.is_over or self.reason is not None:
            return []
        is_private = self._routes.party in self._routes.topology.private
        if is_private or fault.code is Code.FAILED:
            public = f"{at_start(self._routes.party)} could not go on{'' if is_private else '; see its log'}."
        else:
            public = reason
        return self._give_up(Cancel(reason=public, fault=fault), now_s, reason)

    def adopt(self, reason: StopReason | None, now_s: float) -> None:
        """After a Resync the answer is complete for another reason, or not at all."""
        self.reason, self._finished_s = reason, now_s
        self.finished.clear()

    def free(self) -> list[Send]:
        """Nothing is owed to anybody any more."""
        if self.is_over:
            return []
        self.is_over = True
        return [Send(role, End(session=self._spec.session)) for role in self.listeners]

    def make_final_frames(self, now_s: float) -> dict[str, LinkFrame]:
        """What a driver answers each peer for this session once it is freed."""
        prefix = self._log.prefix
        return {
            peer: link.send(self.last_word(peer), prefix, now_s).message for peer, link in self._links.items()
        }

    def last_word(self, peer: str) -> LinkBody:
        """To a peer that is not to go on."""
        if self._giving_up is not None:
            return self._giving_up
        if peer in self.lost:
            reason = f"{at_start(self._routes.party)} answers alone."
            return Cancel(reason=reason, fault=_CANCELLED.fault)
        return Done(is_reply=True)

    def to_peer(self, peer: str, body: LinkBody, now_s: float) -> list[Send]:
        """Across the link to one peer."""
        return [self._links[peer].send(body, self._log.prefix, now_s)]

    def post(self, peers: Sequence[str], body: Numbered, now_s: float) -> list[Send]:
        """Across the links to these peers, but for those that are lost: a Resync brings them up when they return."""
        there = [peer for peer in peers if peer not in self.lost]
        return [self._links[peer].post(body, self._log.prefix, now_s) for peer in there]

    def post_verdict(self, peers: Sequence[str], verdict: Verdict, now_s: float) -> list[Send]:
        """As `post`; where this party goes on by itself a verdict waits while the link is full, but for the last."""
        may_wait = self._spec.rules.goes_on_at(self._routes.party) and self.reason is None
        prefix, there = self._log.prefix, [peer for peer in peers if peer not in self.lost]
        return [
            send
            for peer in there
            for send in self._links[peer].post_verdict(verdict, prefix, now_s, may_wait=may_wait)
        ]

    def propose(self, proposal: Proposal, now_s: float) -> list[Send]:
        """An own proposal to those that vote or decide on it; beside peers that go on it waits for a full link."""
        if not self.may_propose(proposal):
            return []
        prefix, may_wait = self._log.prefix, self._spec.rules.goes_on_at
        there = [peer for peer in self._routes.proposals_go_to if peer not in self.lost]
        return [
            send
            for peer in there
            for send in self._links[peer].post_proposal(proposal, prefix, now_s, may_wait=may_wait(peer))
        ]

    def may_propose(self, proposal: Proposal) -> bool:
        """Whether it keeps to the uplink budget. What was drafted while all voters were lost need not; they decide that
        step without it if they are back."""
        num_tokens = len(proposal.tokens)
        return self._spec.rules.count_fitting(proposal.payloads or [b""] * num_tokens) == num_tokens

    def _give_up(self, body: Cancel, now_s: float, error: str | None = None) -> list[Send]:
        """End the query early, and tell all peers that have not done so themselves. error: None: it was cancelled."""
        self._giving_up = body
        busy = [peer for peer in self._links if peer not in self.finished]
        sends = [send for peer in busy for send in self.to_peer(peer, body, now_s)]
        fault = None if error is None else body.fault
        return sends + self._end("failed" if error else "cancelled", now_s, error, fault) + self.free()

    def _free_if_finished(self) -> list[Send]:
        return self.free() if self.finished >= self._links.keys() else []

    # ---- without a peer ----------------------------------------------------------------------------------------

    def is_abandoned(self, now_s: float) -> bool:
        """Whether the peers have been silent, or unfinished, for too long to be waited for."""
        nearer = self._routes.toward_home
        if nearer is not None and self._links[nearer].silence_s(now_s) > ABANDONED_S:
            return True
        waited_s = 0.0 if self.reason is None else now_s - self._finished_s
        may_end = nearer is None or self._routes.is_authority
        return may_end and all(
            peer in self.finished or min(waited_s, link.silence_s(now_s)) > LINGER_S or waited_s > ABANDONED_S
            for peer, link in self._links.items()
        )

    def is_peer_silent(self, now_s: float) -> bool:
        """Whether a peer has been quiet for so long that its connection should be renewed."""
        return self.reason is None and any(
            link.silence_s(now_s) > link.loss_limit_s(0.0) for link in self._links.values()
        )

    def check_peers(self, now_s: float) -> list[Send]:
        """Declare the peers lost that have been silent for too long."""
        return [send for peer in self._links for send in self._check_peer(peer, now_s)]

    def _check_peer(self, peer: str, now_s: float) -> list[Send]:
        link = self._links[peer]
        silence_s = link.silence_s(now_s)
        can_lose = peer != self._routes.toward_home and self.reason is None and peer not in self.lost
        if not can_lose or silence_s <= link.loss_limit_s(self._spec.peer_loss_margin_s):
            return []
        if self._spec.on_peer_loss == "wait":
            return []
        if self._spec.on_peer_loss == "fail":
            return self.fail(
                f"{at_start(peer)} has been silent for {silence_s:.1f} s; check the link, "
                "or set on_peer_loss to 'continue' or 'wait'.",
                now_s,
                Fault(code=Code.LOST, party=peer),
            )
        return self._lose(peer)

    def rejoin_peer(self, peer: str) -> list[Send]:
        """A lost peer is back: its votes count again from the next step on."""
        if peer not in self.lost:
            return []
        self.lost.remove(peer)
        event = PeerEvent(step=len(self._log.prefix), is_alone=False, party=peer)
        return [*self._reporter.emit(event), *self.tell_alone()]

    def tell_alone(self) -> list[Send]:
        """To the own decoder, if it drafts for others: whether it goes on without them."""
        alone = Alone(session=self._spec.session, is_alone=self.decides_alone)
        return [Send("decoder", alone)] if self._routes.leads else []

    def on_cancel(self, peer: str, cancel: Cancel, now_s: float) -> list[Send]:
        """A peer gave the session up."""
        if peer == self._routes.toward_home:
            self.finished.add(peer)
            return self._give_up(_CANCELLED, now_s)
        if self.reason is not None:
            self.finished.add(peer)
            return self._free_if_finished()
        if self._spec.on_peer_loss == "continue" and not cancel.fault.is_refusal:
            return [] if peer in self.lost else self._lose(peer, cancel.reason)
        self.finished.add(peer)
        because = f"{at_start(peer)} gave the query up: {cancel.reason}"
        return self.fail(because, now_s, replace(cancel.fault, party=peer))

    def on_last_word(self, peer: str, now_s: float) -> list[Send]:
        """A peer has freed the session; an authority that is not done was silent for too long."""
        if peer == self._routes.toward_home and (self.reason is None or not self._routes.is_authority):
            return self.free()
        if self.reason is not None:
            self.finished.add(peer)
            return self._free_if_finished()
        if self._spec.on_peer_loss != "continue":
            return self.fail(
                f"{at_start(peer)} frees a query after {ABANDONED_S:.0f} s of silence and has freed this one; "
                "ask again, or set on_peer_loss to 'continue'.",
                now_s,
                Fault(code=Code.LOST, party=peer),
            )
        return [] if peer in self.lost else self._lose(peer)

    def _lose(self, peer: str, reason: str | None = None) -> list[Send]:
        self.lost.add(peer)
        self._ballots.reopen()
        self._log.verdicts.clear()  # they decide steps after one that is now decided without the peer
        self._links[peer].backlog.clear()  # a Resync brings the peer up when it returns
        step = len(self._log.prefix)
        event = PeerEvent(step=step, is_alone=True, reason=reason, party=peer)
        return [*self._reporter.emit(event), *self.tell_alone()]

    def _end(
        self, reason: StopReason, now_s: float, error: str | None = None, fault: Fault | None = None
    ) -> list[Send]:
        self.reason, self._finished_s = reason, now_s
        done = DoneEvent(reason=reason, statistics=self.statistics, error=error, fault=fault)
        return [*self._reporter.void(len(self._log.prefix)), *self._reporter.emit(done)]
