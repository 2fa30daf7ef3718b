"""Own votes as race lists: how much of each a peer gets, what is asked for where lists leave the winner open.

The decoder gives a vote in full, and it stays with this party; peers get the tokens that score best in the race
(`tandem.aggregation.race_lists`). A decider that cannot name the winner of the full mixture asks for a longer list. It
is cut from the vote that is held here, without another pass of the model. A vote is part of an own proposal, or one of
those on another party's.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from tandem.codecs.race_lists import MAX_LISTED, WHOLE, cut_vote, vote_depth
from tandem.messages import ListRequest, Proposal, Undecided, VerifyResult, Votes
from tandem.modes.spec import SessionSpec
from tandem.protocol.ballots import BallotBox
from tandem.protocol.link import PeerLink
from tandem.protocol.log import CommittedLog
from tandem.protocol.outbox import Send
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes

B = TypeVar("B", Proposal, Votes)

GROWTH = 2
"""Tokens by which later lists are longer after a request."""
PATIENCE = 24
"""Lists in a row that nobody wanted longer, after which later ones have a token fewer."""
MAX_WANTED = 64
"""Requests that are remembered: a decider has one at a time."""


class ListLength:
    """How many tokens the next list has: more after a request, one fewer after PATIENCE lists without any.

    All queries of a coordinator share one: an answer may be shorter than PATIENCE. Invariant: between half and four
    times the first length. It decides bytes and round trips, never what is decided.
    """

    def __init__(self, first: int) -> None:
        self.first = self.depth = first
        self._least, self._most = max(1, first // 2), min(4 * first, MAX_LISTED)
        self._num_enough = 0

    def take(self) -> int:
        """For a list that is made now."""
        self._num_enough += 1
        if self._num_enough >= PATIENCE:
            self._num_enough, self.depth = 0, max(self.depth - 1, self._least)
        return self.depth

    def grow(self) -> None:
        """A list was too short."""
        self._num_enough, self.depth = 0, min(self.depth + GROWTH, self._most)


class RaceVotes:
    """The own votes of one session, and the requests of both parties for more of a vote.

    Invariants: all lists of a vote are cut from the distribution that was held first. A vote is kept until every peer
    that is not lost has committed its step, or no branch can need it. Of one prefix, each longer list is asked for once
    per view, and sent once per view; what gets lost on the link is resent as any other body.
    """

    def __init__(
        self,
        spec: SessionSpec,
        routes: Routes,
        log: CommittedLog,
        ballots: BallotBox,
        links: Mapping[str, PeerLink],
        reporter: Reporter,
        lost: Container[str],
    ) -> None:
        """lost: the peers that are lost at present."""
        self.length = ListLength(spec.race_depth)
        self._spec, self._routes, self._log, self._ballots = spec, routes, log, ballots
        self._links, self._reporter, self._lost = links, reporter, lost
        self._votes = spec.roles.role(routes.party).votes
        self._kept: dict[bytes, Proposal | Votes] = {}  # in full, one vote each, by digest of its prefix
        self._wanted: dict[bytes, tuple[int, ListRequest]] = {}  # by digest, with the view it was answered in
        self._asked: dict[str, tuple[int, bytes, int]] = {}  # of each peer: view, digest and depth

    def make_public(self, body: B) -> B:
        """An own proposal, or own votes, as the peers need them. The payloads of a voter are its votes in full."""
        is_proposal = isinstance(body, Proposal)
        peers = self._routes.proposals_go_to if is_proposal else self._routes.votes_go_to
        is_cut = (
            self._spec.rules.has_race_lists and self._votes and any(peer not in self._lost for peer in peers)
        )
        if not is_cut:
            return self._routes.make_public(body) if isinstance(body, Proposal) else body
        self._forget()
        payloads = []
        for digest, vote in _split(body):
            self._kept[digest] = vote
            depth = WHOLE if self._spec.rules.sends_whole_votes(self._routes.party) else self.length.take()
            if digest in self._wanted:
                depth = max(depth, self._wanted[digest][1].depth)
            payloads.append(self._cut(vote, depth))
        return replace(body, payloads=tuple(payloads))

    def answer(self, peer: str, request: ListRequest, number: int, now_s: float) -> list[Send]:
        """A peer needs more of an own vote; one that is not computed yet goes out at that length. number: of its
        frame."""
        view = self._links[peer].view
        self._links[peer].receipts.add(number, now_s)
        answered = self._wanted.get(request.digest)
        if answered is not None and answered[0] == view and answered[1].depth >= request.depth:
            return []
        self._wanted[request.digest] = view, request
        if len(self._wanted) > MAX_WANTED:
            del self._wanted[next(iter(self._wanted))]
        self.length.grow()
        kept = self._kept.get(request.digest)
        if kept is None:
            return []
        longer = replace(kept, payloads=(self._cut(kept, request.depth),))
        self._links[peer].backlog.supersede(longer)
        return [self._links[peer].post(longer, self._log.prefix, now_s)]

    def ask(self, undecided: Undecided, now_s: float) -> list[Send]:
        """The own aggregator needs more of the peers' votes; nothing to do if the ballot it speaks of is an old one."""
        prefix = self._log.prefix
        if not self._ballots.is_pending(undecided) or undecided.digest != prefix.digest:
            return []
        sends = []
        for voter, depth in zip(undecided.voters, undecided.depths, strict=True):
            peer = self._routes.topology.name(voter)
            if peer not in self._links or depth <= self._known(peer, undecided.digest):
                continue
            self._asked[peer] = self._links[peer].view, undecided.digest, depth
            self._reporter.count("num_list_requests")
            request = ListRequest(step=undecided.step, digest=undecided.digest, depth=depth)
            sends.append(self._links[peer].post(request, prefix, now_s))
        return sends

    def count_decided(self, result: VerifyResult, num_tokens: int) -> None:
        """So many steps are decided here: by the first lists, or the first of them only with a longer one.

        A later one that needs a longer list ends the result before it, and begins the next.
        """
        if not self._spec.rules.has_race_lists or len(result.voters) < 2:
            return
        is_escalated = any(digest == result.digest for _, digest, _ in self._asked.values())
        self._reporter.count("num_escalated", int(is_escalated))
        self._reporter.count("num_certified", num_tokens - is_escalated)

    def _known(self, peer: str, digest: bytes) -> int:
        """How much of a peer's vote is held, or was asked for in this view."""
        held = self._ballots.entries[peer].get(digest)
        view, asked, depth = self._asked.get(peer, (-1, b"", 0))
        is_asked = (view, asked) == (self._links[peer].view, digest)
        return max(depth if is_asked else 0, vote_depth(held.payload or b"") if held is not None else 0)

    def _cut(self, vote: Proposal | Votes, depth: int) -> bytes:
        spec = self._spec
        return cut_vote(
            vote.payloads[0],
            depth,
            spec.vocab_size,
            seed=spec.seed,
            step=vote.step,
            temperature=spec.sampling.temperature,
        )

    def _forget(self) -> None:
        """Drop votes that no peer can need any more."""
        prefix, own = self._log.prefix, self._ballots.own
        there = [link.peer_committed for peer, link in self._links.items() if peer not in self._lost]
        reached = min(there, default=len(prefix))
        self._kept = {
            digest: kept
            for digest, kept in self._kept.items()
            if (
                digest in own
                if kept.step >= len(prefix)
                else kept.step >= reached and prefix.digests[kept.step] == digest
            )
        }


def _split(body: Proposal | Votes) -> Iterator[tuple[bytes, Proposal | Votes]]:
    """Its votes, one in each, by digest of the prefix. A proposal of a party that votes has one."""
    if isinstance(body, Proposal):
        yield body.digest, body
        return
    for number, (digest, payload) in enumerate(zip(body.digests, body.payloads, strict=True)):
        yield (
            digest,
            replace(
                body,
                step=body.step + number,
                digests=(digest,),
                payloads=(payload,),
                log_weights=body.log_weights[number : number + 1],
            ),
        )
