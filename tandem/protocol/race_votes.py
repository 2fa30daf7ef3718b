"""Own votes as race lists: how much of each a peer gets, what is asked for where lists leave the winner open.

The decoder gives a vote in full, and it stays with this party; peers get the tokens that score best in the race
(`tandem.aggregation.race_lists`). A decider that cannot name the winner of the full mixture asks for a longer list. It
is cut from the vote that is held here, without another pass of the model.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tandem.aggregation.race_lists import least_depth
from tandem.aggregation.steps import Step
from tandem.codecs.race_lists import MAX_LISTED, WHOLE, cut_vote, vote_depth
from tandem.messages import ListRequest, Vote
from tandem.modes.spec import SessionSpec
from tandem.protocol.ballots import steps_of, vote_of
from tandem.protocol.prefix import Prefix, digests_along

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
        self._least, self._most = least_depth(first), min(4 * first, MAX_LISTED)
        self._num_enough = 0

    def take(self) -> int:
        """The depth for a list that is made now."""
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

    def __init__(self, spec: SessionSpec, party: str) -> None:
        self.length = ListLength(spec.race_depth)
        self.are_cut = spec.rules.has_race_lists and spec.roles.role(party).votes
        self._spec, self._party = spec, party
        self._kept: dict[bytes, Step] = {}  # in full, by digest of the prefix
        self._requests: dict[bytes, tuple[int, ListRequest]] = {}  # by digest, with the view of the answer
        self._asked: dict[str, tuple[int, bytes, int]] = {}  # of each peer: view, digest and depth

    def cut(self, body: Vote, prefix: Prefix, own: Container[bytes], num_committed: int) -> Vote:
        """An own vote as the peers need it. body: with payloads in full.

        prefix: the committed one. own: of which prefixes an own vote may still count. num_committed: steps that all
        peers have committed.
        """
        self._forget(prefix, own, num_committed)
        payloads = []
        steps = steps_of(body, is_draft=self._spec.roles.role(self._party).drafts)
        for digest, step in zip(digests_along(body.digest, body.tokens), steps, strict=False):
            self._kept[digest] = step
            depth = WHOLE if self._spec.rules.sends_whole_votes(self._party) else self.length.take()
            if digest in self._requests:
                depth = max(depth, self._requests[digest][1].depth)
            payloads.append(self._cut(step, depth))
        return replace(body, payloads=tuple(payloads))

    def answer(self, request: ListRequest, view: int) -> Vote | None:
        """More of an own vote for a peer in this view. One that is not computed yet goes out at that length."""
        answered = self._requests.get(request.digest)
        if answered is not None and answered[0] == view and answered[1].depth >= request.depth:
            return None
        self._requests[request.digest] = view, request
        if len(self._requests) > MAX_WANTED:
            del self._requests[next(iter(self._requests))]
        self.length.grow()
        kept = self._kept.get(request.digest)
        if kept is None:
            return None
        return vote_of(request.digest, replace(kept, payload=self._cut(kept, request.depth)))

    def ask(self, peer: str, view: int, digest: bytes, payload: bytes | None, depth: int) -> bool:
        """Whether to ask a peer for so much of its vote in this view. payload: what is here of it, if anything."""
        asked_view, asked, asked_depth = self._asked.get(peer, (-1, b"", 0))
        is_asked = (asked_view, asked) == (view, digest)
        depth_here = 0 if payload is None else vote_depth(payload)
        if depth <= max(asked_depth if is_asked else 0, depth_here):
            return False
        self._asked[peer] = view, digest, depth
        return True

    def awaits_more(self, peer: str, view: int, digest: bytes, payload: bytes) -> bool:
        """Whether a peer was asked for more of its vote than this payload."""
        asked_view, asked, depth = self._asked.get(peer, (-1, b"", 0))
        return (asked_view, asked) == (view, digest) and depth > vote_depth(payload)

    def has_asked(self, digest: bytes) -> bool:
        """Whether more of a vote on this prefix was asked for."""
        return any(asked == digest for _, asked, _ in self._asked.values())

    def _cut(self, step: Step, depth: int) -> bytes:
        spec, temperature = self._spec, self._spec.sampling.temperature
        return cut_vote(
            step.payload or b"",
            depth,
            spec.vocab_size,
            seed=spec.seed,
            step=step.step,
            temperature=temperature,
        )

    def _forget(self, prefix: Prefix, own: Container[bytes], num_committed: int) -> None:
        """Drop votes that no peer can need any more."""
        self._kept = {
            digest: kept
            for digest, kept in self._kept.items()
            if (
                digest in own
                if kept.step >= len(prefix)
                else kept.step >= num_committed and prefix.digests[kept.step] == digest
            )
        }
