"""The proposals and votes of every party after each prefix, and the ballots made of them.

A proposed token is accepted if it is the one that was committed.

The decoder gives a vote in full, and it stays with this party; peers get the tokens that score best in the race
(`tandem.aggregation.race_lists`). A decider that cannot name the winner of the full mixture asks for a longer list. It
is cut from the vote that is held here, without another pass of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import nan

from tandem.aggregation.race_lists import least_depth
from tandem.aggregation.rules import Step
from tandem.codecs.votes import MAX_LISTED, WHOLE, cut_vote, vote_depth, write_token
from tandem.messages import Ballot, ListRequest, VerifyResult, Vote
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.modes import SessionSpec
from tandem.modes.mode import MAX_PROPOSAL, Mode
from tandem.protocol.log import MAX_AHEAD, Branches, Prefix, digests_along, extend_digest


def count_accepted(proposal: Vote, prefix: Prefix, num_committed: int) -> int | None:
    """Its tokens before the first rejected one; None: not decided yet, or it continues other tokens.

    prefix: begins with so many committed tokens.
    """
    step, length = proposal.step, len(proposal.tokens)
    if num_committed <= step or prefix.digests[step] != proposal.digest:
        return None
    committed = prefix.tokens[step : min(step + length, num_committed)]
    pairs = zip(proposal.tokens, committed, strict=False)
    num_equal = next((count for count, (one, other) in enumerate(pairs) if one != other), len(committed))
    return num_equal if num_equal < len(committed) or num_equal == length else None


def is_open(proposal: Vote, prefix: Prefix, num_committed: int) -> bool:
    """Whether later tokens can decide it. prefix, num_committed: as above."""
    if num_committed < proposal.step:
        return True
    is_same = prefix.digests[proposal.step] == proposal.digest
    return is_same and count_accepted(proposal, prefix, num_committed) is None


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
        self._kept = {
            digest: kept
            for digest, kept in self._kept.items()
            if (
                digest in own
                if kept.step >= len(prefix)
                else kept.step >= num_committed and prefix.digests[kept.step] == digest
            )
        }


MAX_ENTRIES = 512
"""Entries of a peer beyond which only what is next is taken in; the sender keeps the rest and sends it again."""
MAX_ENTRY_BYTES = 16 * MAX_FRAME_BYTES
"""The payloads of a peer's entries, likewise."""

BallotKey = tuple[int, bytes, tuple[int, ...]]
"""View, prefix and voters of a ballot."""


def steps_of(vote: Vote, *, is_draft: bool, arrived_s: float = nan) -> list[Step]:
    """A vote, step by step. is_draft: whether its tokens are the sender's, or those of a proposal that it follows."""
    rows = zip_longest(vote.tokens, vote.payloads, vote.log_weights)
    return [
        Step(number, token if is_draft else None, payload, vote.decode_us, log_weight, arrived_s=arrived_s)
        for number, (token, payload, log_weight) in enumerate(rows, vote.step)
    ]


def vote_of(digest: bytes, step: Step) -> Vote:
    """The vote on one prefix that is this step."""
    return Vote(
        step=step.step,
        digest=digest,
        tokens=() if step.token is None else (step.token,),
        payloads=() if step.payload is None else (step.payload,),
        log_weights=() if step.log_weight is None else (step.log_weight,),
        decode_us=step.decode_us,
    )


class BallotBox:
    """The proposals and votes of one session that may still count, and the ballot that is with the aggregator.

    Invariants: one entry per party and prefix, the first that came, bytes included, whatever a restarted decoder
    computes again; only a race list gives way to a longer one, and then the ballot is put to the vote again. A ballot
    holds only votes conditioned on exactly the committed prefix, or on its continuation by the proposal that they
    follow, in the topology's order. A prefix is put to the vote of the same voters once per view, unless `reopen` is
    called. No entry is held whose branch is known to be dead, nor one that is too far ahead. How long a prefix is that
    is not committed here, its sender says, and only its own entries depend on it.
    """

    def __init__(
        self, session: int, rules: Mode, party: str, measure: Callable[[bytes], int] | None = None
    ) -> None:
        """measure: how much of a vote a payload holds; None: votes are not cut, and the first payload stays."""
        self.session = session
        self.party = party
        self.entries: dict[str, dict[bytes, Step]] = {
            name: {} for name in rules.roles.topology.parties
        }  # by party and digest
        self.branches = {name: Branches() for name in rules.roles.drafters}
        self.pending: BallotKey | None = None  # the ballot at the aggregator
        self._rules, self._roles = rules, rules.roles
        self._measure = measure
        self._drafters = rules.roles.drafters
        self._follows_proposal = rules.follows_proposals
        is_drawn, voters = rules.votes_are_tokens, rules.roles.voters
        self._drawers = set(self._drafters).intersection(voters) if is_drawn else set()  # drafts are votes
        self._late_on = b""  # the last prefix on which the peers' votes were waited for too long

    @property
    def own(self) -> Mapping[bytes, Step]:
        """This party's entries, by the digest of the prefix."""
        return self.entries[self.party]

    @property
    def drafts(self) -> Mapping[bytes, Step]:
        """Drafts that the client may see before they are decided, the own or those of the drafter; by digest."""
        return self.entries[self.party if self.party in self._drafters else self._drafters[0]]

    # ---- taking in ---------------------------------------------------------------------------------------------

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        """Take in a vote. prefix: the committed one. False: some of it cannot be kept, and must come again."""
        if vote.step + vote.num_prefixes > len(prefix) + MAX_AHEAD:
            return False
        branches = self.branches.get(source)  # None: it follows a proposal
        entries = steps_of(vote, is_draft=branches is not None, arrived_s=arrived_s)
        digests = digests_along(vote.digest, vote.tokens)
        for step, (digest, entry) in enumerate(zip_longest(digests, entries), vote.step):
            if branches is not None and step <= len(prefix) and digest != prefix.digests[step]:
                # it continues a rejected token, and all that continues it is dead, too
                branches.kill(digest, step)
            if entry is None:  # behind the last token of a proposal
                break
            if not self._has_room(source, step, prefix):
                return False
            if branches is not None and (token := entry.token) is not None:
                if entry.payload is None and source in self._drawers:
                    entry = replace(entry, payload=write_token(token))
                if step >= len(prefix):
                    branches.add(digest, step, token)
            self._hold(source, digest, entry, prefix)
        return True

    def drop(self, party: str, digest: bytes) -> None:
        """Drop this party's entry after a prefix, which proved unusable: it counts as not received."""
        self.entries[party].pop(digest, None)
        self.reopen()

    def _has_room(self, source: str, step: int, prefix: Prefix) -> bool:
        """Whether an entry for this step can be kept: that of the next step always, and every own one."""
        if step <= len(prefix) or source == self.party:
            return True
        entries = self.entries[source]
        num_bytes = sum(len(entry.payload or b"") for entry in entries.values())
        return len(entries) < MAX_ENTRIES and num_bytes < MAX_ENTRY_BYTES

    def _hold(self, source: str, digest: bytes, entry: Step, prefix: Prefix) -> None:
        if entry.step >= len(prefix) and not self._is_dead(source, digest, entry.step, prefix):
            first = self.entries[source].setdefault(digest, entry)
            if self._is_longer(entry, first):
                self.entries[source][digest] = replace(first, payload=entry.payload)
                if self.pending is not None and self.pending[1] == digest:
                    self.reopen()

    def _is_longer(self, entry: Step, first: Step) -> bool:
        if self._measure is None or entry.payload is None or first.payload is None:
            return False
        same_vote = entry.log_weight == first.log_weight
        return same_vote and self._measure(entry.payload) > self._measure(first.payload)

    # ---- putting to the vote -----------------------------------------------------------------------------------

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        """The ballot on the next step, once it is complete, and once only. voters: that are there."""
        indices = tuple(map(self._roles.topology.index, self._rules.needed(len(prefix), voters)))
        key = (view, prefix.digest, indices)
        votes = list(self._complete_votes(prefix, voters)) if self.pending != key else []
        if not votes:
            return None
        self.pending = key
        entries = [entry for _, row in votes for entry in row]
        return Ballot(
            session=self.session,
            view=view,
            step=len(prefix),
            digest=prefix.digest,
            voters=indices,
            tokens=tuple(token for token, _ in votes if token is not None),
            payloads=tuple(entry.payload or b"" for entry in entries),
            log_weights=tuple(entry.log_weight for entry in entries if entry.log_weight is not None),
        )

    def _complete_votes(
        self, prefix: Prefix, voters: Sequence[str]
    ) -> Iterator[tuple[int | None, list[Step]]]:
        """The votes that decide on this prefix, and on those that a proposal continues it to as long as they are of the
        same voters; each with the next token of that proposal."""
        digest, needed = prefix.digest, self._rules.needed(len(prefix), voters)
        for step in range(len(prefix), len(prefix) + MAX_PROPOSAL + 1):
            if self._rules.needed(step, voters) != needed:
                return
            rows = [self.entries[voter].get(digest) for voter in needed]
            votes = [entry for entry in rows if entry is not None and entry.payload is not None]
            if len(votes) < len(rows):
                return
            token = self.proposed(digest) if self._follows_proposal else None
            yield token, votes
            if token is None:
                return
            digest = extend_digest(digest, token)

    def limit_wait(self, digest: bytes, opened_s: float, committed_s: float, now_s: float) -> None:
        """Wait no longer for what peers owe to the next step, a vote or a longer list, if `decoding.patience_s` has
        passed since the step before was committed and the own vote was there.

        The bound is plain, while CONCORD (Hu et al., arXiv 2606.15179) asks at each step whether waiting has paid.
        """
        own = self.own.get(digest)
        since_s = committed_s if own is None else max(committed_s, opened_s + own.arrived_s)
        if now_s - since_s >= self._rules.spec.decoding.patience_s:
            self._late_on = digest

    def is_late(self, digest: bytes) -> bool:
        """Whether the votes of peers on this prefix come too late to count, even before it is decided."""
        return digest == self._late_on

    def is_pending(self, result: VerifyResult) -> bool:
        """Whether a result answers the ballot at the aggregator, of the same voters."""
        return self.pending == (result.view, result.digest, result.voters)

    def reopen(self) -> None:
        """The ballot at the aggregator no longer counts."""
        self.pending = None

    def restore(self, vote: Vote) -> Vote:
        """An own vote as it first came, where it was computed again."""
        digests, steps = digests_along(vote.digest, vote.tokens), steps_of(vote, is_draft=False)
        first = [self.own.get(digest, step) for digest, step in zip(digests, steps, strict=True)]
        return replace(
            vote,
            payloads=tuple(step.payload for step in first if step.payload is not None),
            log_weights=tuple(step.log_weight for step in first if step.log_weight is not None),
        )

    # ---- looking up --------------------------------------------------------------------------------------------

    def proposed(self, digest: bytes) -> int | None:
        """The token that is proposed after this prefix, by the first drafter that proposes one."""
        for drafter in self._drafters:
            if (entry := self.entries[drafter].get(digest)) is not None:
                return entry.token
        return None

    def payload_of(self, party: str, digest: bytes) -> bytes | None:
        """The payload, as far as it is here, of a party's vote on one prefix; empty: a draft without one."""
        entry = self.entries[party].get(digest)
        return None if entry is None else entry.payload or b""

    def votes_of(self, party: str) -> list[Vote]:
        """All that a party proposes and votes, one prefix in each."""
        return [vote_of(digest, entry) for digest, entry in self.entries[party].items()]

    def drafts_on(self, digest: bytes) -> tuple[Step | None, ...]:
        """The entry of each drafter after this prefix, in the topology's order."""
        return tuple(self.entries[drafter].get(digest) for drafter in self._drafters)

    def shares_on(self, digest: bytes, voters: Sequence[str], *, is_own: bool) -> dict[str, float]:
        """How much each vote on this prefix counts (`Roles.shares`), for the home; empty: it is decided elsewhere, or
        by fewer votes than those of all.

        is_own: decided here, by the votes that are held.
        """
        if len(voters) == 1:
            return {voters[0]: 1.0}
        entries = [self.entries[voter].get(digest) for voter in voters]
        if not is_own or None in entries:
            return {}
        weights = [
            entry.log_weight for entry in entries if entry is not None and entry.log_weight is not None
        ]
        indices = [self._roles.topology.index(voter) for voter in voters]
        shares = self._roles.shares(indices, weights, self._rules.spec.max_peer_share)
        return dict(zip(voters, shares, strict=True))

    def find_last_voter(self, digest: bytes, voters: Sequence[str]) -> str | None:
        """The party whose vote on this prefix came last; None where one voter decides, drafters vote, or it is not
        known here."""
        arrived_s = {
            voter: entry.arrived_s
            for voter in voters
            if (entry := self.entries[voter].get(digest)) is not None and entry.payload is not None
        }
        have_all_voted = self._follows_proposal and 1 < len(arrived_s) == len(voters)
        return max(arrived_s, key=arrived_s.__getitem__) if have_all_voted else None

    def find_last_voters(
        self, prefix: Prefix, tokens: Sequence[int], voters: Sequence[str]
    ) -> list[str | None]:
        """The last voter on each of the tokens that follow `prefix`."""
        digests = digests_along(prefix.digest, tokens)
        return [self.find_last_voter(digest, voters) for _, digest in zip(tokens, digests, strict=False)]

    def continues(self, source: str, proposal: Vote, prefix: Prefix) -> bool:
        """Whether a proposal that was taken in follows the committed `prefix`.

        Its first tokens may be committed: a bonus was.
        """
        num_committed = len(prefix) - proposal.step
        if num_committed < 0:
            return proposal.digest in self.entries[source]
        digests = list(digests_along(proposal.digest, proposal.tokens))
        return num_committed < len(digests) and digests[num_committed] == prefix.digest

    # ---- committing --------------------------------------------------------------------------------------------

    def advance(self, prefix: Prefix) -> None:
        """One more token is committed: drop entries for committed steps and on dead branches."""
        for branches in self.branches.values():
            branches.commit(prefix)
        for party, entries in self.entries.items():
            self.entries[party] = {
                digest: entry
                for digest, entry in entries.items()
                if entry.step >= len(prefix) and not self._is_dead(party, digest, entry.step, prefix)
            }

    def adopt(self, prefix: Prefix) -> None:
        """The committed tokens were replaced by these: branches that were dead may be alive."""
        for branches in self.branches.values():
            branches.clear()
        self.advance(prefix)

    def _is_dead(self, party: str, digest: bytes, step: int, prefix: Prefix) -> bool:
        """Whether it continues another token than a committed one. A voter has the branches that it follows."""
        branches = self.branches.get(party, self.branches[self._drafters[0]])
        return branches.is_dead(digest) or (step == len(prefix) and digest != prefix.digest)
