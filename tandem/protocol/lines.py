"""What is proposed after each prefix, and what the voters say of it: the stores of modes whose drafter has no vote."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.protocol.lineage import Lineage
from tandem.protocol.log import MAX_AHEAD
from tandem.protocol.messages import Commits, Line, Votes
from tandem.protocol.prefix import Prefix, extend_digest

MAX_ENTRIES = 512
"""Entries of a store beyond which only what is next is taken in; the sender keeps the rest and sends it again."""


class LineBook:
    """The proposed token after each prefix.

    Invariants: one token per prefix, the first that was proposed. Nothing shorter than the committed prefix is kept,
    nor what is known to continue a rejected token, nor anything more than MAX_AHEAD steps ahead. Branches whose
    beginning was lost cannot be told to be dead before their step; MAX_ENTRIES bounds them.
    """

    def __init__(self) -> None:
        self.num_accepted = 0  # committed tokens that had been proposed
        self.lineage = Lineage()
        self._next: dict[bytes, tuple[int, int]] = {}  # by digest of the prefix: its length, and the token

    def __len__(self) -> int:
        return len(self._next)

    def add(self, line: Line, prefix: Prefix) -> bool:
        """Take in a line. prefix: the committed one. False: it cannot be kept, and must come again."""
        is_full = len(self._next) >= MAX_ENTRIES and line.step > len(prefix)
        if is_full or line.step + len(line.tokens) > len(prefix) + MAX_AHEAD:
            return False
        digest, is_dead = line.digest, False
        for position, token in enumerate((*line.tokens, None), line.step):
            is_dead = is_dead or (position <= len(prefix) and digest != prefix.digests[position])
            if is_dead:  # it continues a rejected token, and so will what continues it
                self.lineage.kill(digest, position)
            if token is None:
                break
            if position >= len(prefix):
                self.lineage.add(digest, position, token)
                if not self.lineage.is_dead(digest):
                    self._next.setdefault(digest, (position, token))
            digest = extend_digest(digest, token)
        return True

    def __contains__(self, digest: object) -> bool:
        """Whether a token is proposed after this prefix, and may still be needed."""
        return digest in self._next

    def follow(self, prefix: Prefix, most: int) -> list[int]:
        """The tokens that are proposed after `prefix`, one after another."""
        tokens: list[int] = []
        digest = prefix.digest
        while len(tokens) < most and digest in self._next:
            token = self._next[digest][1]
            tokens.append(token)
            digest = extend_digest(digest, token)
        return tokens

    def commit(self, prefix: Prefix) -> None:
        """The last token of `prefix` was committed."""
        before, token = prefix.digests[-2], prefix.tokens[-1]
        self.num_accepted += before in self._next and self._next[before][1] == token
        self.lineage.commit(prefix)
        self._next = {
            digest: entry
            for digest, entry in self._next.items()
            if entry[0] >= len(prefix) and not self.lineage.is_dead(digest)
        }


class VoteBox:
    """The votes of one session, by voter and prefix.

    Invariants: one vote per voter and prefix, the first that came, bytes included. A ballot holds only votes on exactly
    the committed prefix, one of each voter, in the topology's order. Nothing shorter than the committed prefix is kept.
    """

    def __init__(self, voters: Sequence[str]) -> None:
        self.votes: dict[str, dict[bytes, tuple[int, bytes]]] = {voter: {} for voter in voters}

    def __len__(self) -> int:
        return sum(map(len, self.votes.values()))

    def add(self, voter: str, votes: Votes, prefix: Prefix) -> bool:
        """Take in votes. prefix: the committed one. False: some cannot be kept, and must come again."""
        if len(self.votes[voter]) >= MAX_ENTRIES and votes.step > len(prefix):
            return False
        for length, (digest, payload) in enumerate(
            zip(votes.digests, votes.payloads, strict=True), votes.step
        ):
            if length >= len(prefix) + MAX_AHEAD:
                return False
            if length <= len(prefix) and digest != prefix.digests[length]:
                break  # they continue a rejected token
            if length >= len(prefix):
                self.votes[voter].setdefault(digest, (length, payload))
        return True

    def ballot(self, prefix: Prefix) -> list[bytes] | None:
        """The votes on `prefix`, in the order of the voters; None: one is missing."""
        found = [held.get(prefix.digest) for held in self.votes.values()]
        payloads = [vote[1] for vote in found if vote is not None]
        return payloads if len(payloads) == len(found) else None

    def advance(self, prefix: Prefix, lineage: Lineage) -> None:
        """Drop what is committed, and what never will be."""
        for voter, held in self.votes.items():
            self.votes[voter] = {
                digest: vote
                for digest, vote in held.items()
                if vote[0] >= len(prefix) and not lineage.is_dead(digest)
            }


class VerdictBuffer:
    """The decider's verdicts, until their turn.

    Invariants: none is kept whose last token is committed, nor one more than MAX_AHEAD steps ahead.
    """

    def __init__(self) -> None:
        self._held: dict[int, Commits] = {}  # by the first step

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, commits: Commits, num_committed: int) -> bool:
        """Take in a verdict; False: it is too far ahead to be kept."""
        if commits.step >= num_committed + MAX_AHEAD:
            return False
        if commits.step + len(commits.tokens) > num_committed:
            self._held[commits.step] = commits
        return True

    def take(self, num_committed: int) -> tuple[int, ...]:
        """The next tokens, as far as they are there: a verdict may begin before them."""
        tokens: tuple[int, ...] = ()
        while fitting := [
            held for held in self._held.values() if self._fits(held, num_committed + len(tokens))
        ]:
            tokens += fitting[0].tokens[num_committed + len(tokens) - fitting[0].step :]
        length = num_committed + len(tokens)
        self._held = {key: held for key, held in self._held.items() if held.step + len(held.tokens) > length}
        return tokens

    def _fits(self, held: Commits, length: int) -> bool:
        return held.step <= length < held.step + len(held.tokens)
