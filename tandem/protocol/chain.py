"""One session of a mode whose drafter has no vote (speculative, federated), as one party sees it.

A drafter proposes lines of tokens; each voter answers with its distributions after every prefix of a line, one more
than it has tokens, from one pass; the decider commits a token as soon as all votes on the committed prefix are there,
which accepts some tokens of the line and then gives a correction, or a bonus behind the last one. A vote behind a
rejected token simply never becomes current. Time comes in as an argument; what to send is returned, with its receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.errors import ProtocolError
from tandem.modes.roles import Roles
from tandem.protocol.lifecycle import LINGER_S, StopCheck
from tandem.protocol.lines import LineBook, VerdictBuffer, VoteBox
from tandem.protocol.link import PeerLink
from tandem.protocol.messages import MAX_LINE, Commits, Done, Heartbeat, Line, LinkBody, LinkFrame, Votes
from tandem.protocol.prefix import Prefix, extend_digest

Outgoing = list[tuple[str, LinkFrame]]
"""Frames, each with the peer that it goes to."""
Decide = Callable[[Sequence[bytes], int], int]
"""The target token, from the payloads of all voters in order and the step."""

PATIENCE_S = 0.5
"""A voter without a line votes on the committed prefix after this long: an absent drafter must not stop the answer."""
MAX_RUN_AHEAD = 32
"""Tokens that a drafter proposes past the committed prefix, at most."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a voter computes in one pass: its distributions after `tokens[:first]` and after each further token."""

    tokens: tuple[int, ...]
    first: int


class ChainSession:
    """What one party does in such a session; its roles say which of the three it is.

    Invariants: tokens are committed in step order, by the decider alone; everybody else's are a prefix of its. A party
    has one vote per prefix, ever. After `is_over` it only answers with Done.
    """

    def __init__(
        self, session: int, roles: Roles, party: str, decide: Decide, check_stop: StopCheck, now_s: float
    ) -> None:
        self.roles, self.party = roles, party
        self.prefix = Prefix(session)
        self.lines = LineBook()
        self.votes = VoteBox(roles.voters)
        self.links = {peer: PeerLink(session, now_s) for peer in roles.topology.peers(party)}
        self.is_complete = self.is_over = False
        self.verdicts = VerdictBuffer()
        self._decide, self._check_stop = decide, check_stop
        self._committed_s = now_s

    # ---- planning ----------------------------------------------------------------------------------------------

    def next_draft(self) -> tuple[int, ...] | None:
        """The tokens after which the drafter drafts now; None: far enough ahead, or no drafter."""
        if self.is_complete or not self.roles.role(self.party).drafts:
            return None
        line = self.lines.follow(self.prefix, MAX_RUN_AHEAD)
        return None if len(line) >= MAX_RUN_AHEAD else (*self.prefix.tokens, *line)

    def next_block(self, now_s: float) -> Block | None:
        """What the voter computes now; None: nothing, or no voter."""
        if self.is_complete or not self.roles.role(self.party).votes:
            return None
        line = self.lines.follow(self.prefix, MAX_LINE)
        known, digest, first = self.votes.votes[self.party], self.prefix.digest, 0
        while digest in known:
            if first == len(line):
                return None
            digest, first = extend_digest(digest, line[first]), first + 1
        if not line and now_s - self._committed_s < PATIENCE_S:
            return None
        return Block((*self.prefix.tokens, *line), len(self.prefix) + first)

    # ---- entries -----------------------------------------------------------------------------------------------

    def propose(self, after: Sequence[int], tokens: Sequence[int], now_s: float) -> Outgoing:
        """The own drafter's tokens after these; nothing if those are no longer the tip."""
        if self.next_draft() != tuple(after):
            return []
        line = Line(step=len(after), digest=self.prefix.of(after).digest, tokens=tuple(tokens))
        self.lines.add(line, self.prefix)
        voters = [peer for peer in self.links if self.roles.role(peer).votes]
        return [self._post(peer, line, now_s) for peer in voters]

    def vote(self, block: Block, payloads: Sequence[bytes], now_s: float) -> Outgoing:
        """The own model's distributions for a block."""
        digests = tuple(self.prefix.of(block.tokens).digests[block.first :])
        known = self.votes.votes[self.party]
        if self.is_complete or all(digest in known for digest in digests):
            return []
        votes = Votes(
            party=self.roles.topology.index(self.party),
            step=block.first,
            digests=digests,
            payloads=tuple(
                known[digest][1] if digest in known else payload
                for digest, payload in zip(digests, payloads, strict=True)
            ),
        )
        self.votes.add(self.party, votes, self.prefix)
        deciders = [peer for peer in self.links if self.roles.role(peer).decides]
        return [self._post(peer, votes, now_s) for peer in deciders] + self._advance(now_s)

    def receive(self, source: str, frame: LinkFrame, now_s: float) -> Outgoing:
        """A frame of a peer. ProtocolError, one sentence, where it may not send such a body; the session goes on."""
        link = self.links[source]
        link.receive(frame, now_s)
        if self.is_over:
            return [] if isinstance(frame.body, Done) else [self._send(source, Done(is_reply=True), now_s)]
        self.check(source, frame.body)
        link.acknowledge(frame, min(frame.committed, len(self.prefix)), now_s)
        is_held = True
        match frame.body:
            case Line():
                is_held = self.lines.add(frame.body, self.prefix)
            case Votes():
                is_held = self.votes.add(source, frame.body, self.prefix)
            case Commits():
                is_held = self.verdicts.hold(frame.body, len(self.prefix))
            case Done():
                self.is_over = self.is_complete
        if is_held:
            link.receipts.add(frame.number, now_s)
        return self._advance(now_s) + self._finish(now_s)

    def check(self, source: str, body: LinkBody) -> None:
        """Raise ProtocolError if `source` may not send this body."""
        role = self.roles.role(source)
        if isinstance(body, Votes) and not role.votes:
            raise ProtocolError(
                f"{source} sent votes, but it has none in mode {self.roles.mode}; check its settings."
            )
        if isinstance(body, Votes) and self.roles.topology.index(source) != body.party:
            raise ProtocolError(f"{source} sent votes of party {body.party}; check its settings.")
        if isinstance(body, Votes) and len(body.digests) != len(body.payloads):
            raise ProtocolError(
                f"{source} sent {len(body.payloads)} votes on {len(body.digests)} prefixes; check its version."
            )
        if isinstance(body, Line) and not role.drafts:
            raise ProtocolError(
                f"{source} sent a proposal, but it does not draft in mode {self.roles.mode}; check it."
            )
        if isinstance(body, Line) and not 1 <= len(body.tokens) <= MAX_LINE:
            raise ProtocolError(
                f"A proposal has 1 to {MAX_LINE} tokens (got {len(body.tokens)} from {source}); check its settings."
            )
        if isinstance(body, Commits) and not role.decides:
            raise ProtocolError(
                f"{source} sent a verdict, but it does not decide in mode {self.roles.mode}; check it."
            )

    def tick(self, now_s: float) -> Outgoing:
        """Timers: resend, heartbeat, the end of lingering."""
        if self.is_over:
            return []
        silences = [link.silence_s(now_s) for link in self.links.values()]
        if self.is_complete and min(silences, default=LINGER_S) > LINGER_S:
            self.is_over = True
            return []
        due = [(peer, link.due(self.prefix, now_s, [])) for peer, link in self.links.items()]
        return [(peer, send.message) for peer, sends in due for send in sends]

    # ---- committing --------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> Outgoing:
        """Commit whatever can be: by the own ballots, or by the decider's verdicts in step order."""
        if not self.roles.role(self.party).decides:
            for token in self.verdicts.take(len(self.prefix)):
                self._append(token, now_s)
            return []
        step, tokens = len(self.prefix), []
        while not self.is_complete and (ballot := self.votes.ballot(self.prefix)) is not None:
            tokens.append(self._decide(ballot, len(self.prefix)))
            self._append(tokens[-1], now_s)
        if not tokens:
            return []
        commits = Commits(step=step, tokens=tuple(tokens))
        return [self._post(peer, commits, now_s) for peer in self.links]

    def _append(self, token: int, now_s: float) -> None:
        self.prefix.append(token)
        self.lines.commit(self.prefix)
        self.votes.advance(self.prefix, self.lines.lineage)
        for link in self.links.values():
            link.backlog.drop_dead(self.lines, len(self.prefix))
        self.is_complete = self._check_stop(self.prefix.tokens) is not None
        self._committed_s = now_s

    def _finish(self, now_s: float) -> Outgoing:
        """The decider frees the session once everybody has the whole answer; the others, when they hear of it."""
        is_known = all(link.peer_committed == len(self.prefix) for link in self.links.values())
        if self.is_over or not (self.is_complete and is_known and self.roles.role(self.party).decides):
            return []
        self.is_over = True
        return [self._send(peer, Done(is_reply=True), now_s) for peer in self.links]

    def _post(self, peer: str, body: Line | Votes | Commits, now_s: float) -> tuple[str, LinkFrame]:
        return peer, self.links[peer].post(body, self.prefix, now_s).message

    def _send(self, peer: str, body: LinkBody, now_s: float) -> tuple[str, LinkFrame]:
        return peer, self.links[peer].send(body, self.prefix, now_s).message

    def greet(self, now_s: float) -> Outgoing:
        """Show every peer that this party is there."""
        return [self._send(peer, Heartbeat(), now_s) for peer in self.links]
