"""The committed tokens of one session, in step order, and token sequences with a digest of each of their prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

from tandem.messages import Resync, Verdict, VerifyResult, in_127ths, join_tails
from tandem.messages.wire import MAX_VARINT_BITS
from tandem.modes.query import Roles


@lru_cache(maxsize=4096)  # each party derives a prefix as it is proposed, voted on and committed
def extend_digest(digest: bytes, token: int) -> bytes:
    """The digest of a prefix with one more token."""
    return blake2b(digest + token.to_bytes(4, "little"), digest_size=8).digest()


def digests_along(digest: bytes, tokens: Iterable[int]) -> Iterator[bytes]:
    """The digest of a prefix, then of the prefix with each of the tokens that follow it."""
    return accumulate(tokens, extend_digest, initial=digest)


class Prefix:
    """Tokens x_<t of one session. `digests[t]` identifies the first t of them (8 bytes, chained BLAKE2b)."""

    __slots__ = ("digests", "tokens")

    def __init__(self, session: int, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.digests = [blake2b(session.to_bytes(8, "little"), digest_size=8).digest()]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> bytes:
        """The digest of all tokens."""
        return self.digests[-1]

    def append(self, token: int) -> None:
        """One more token at the end."""
        self.tokens.append(token)
        self.digests.append(extend_digest(self.digests[-1], token))

    def extend(self, tokens: Iterable[int]) -> None:
        """More tokens at the end."""
        for token in tokens:
            self.append(token)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        del self.tokens[length:]
        del self.digests[length + 1 :]

    def begins_with(self, digest: bytes, length: int) -> bool:
        """Whether the digest names its first `length` tokens. Another thread may ask, while the tokens change."""
        return self.digests[length : length + 1] == [digest]

    def adopt(self, tokens: Sequence[int]) -> None:
        """Replace everything from the first token on that differs."""
        length = common_length(self.tokens, tokens)
        self.truncate(length)
        self.extend(tokens[length:])


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))


MAX_PREFIXES = 8192
"""Prefixes remembered of one drafter; of what it proposes beyond them nothing is known, so it counts as alive."""


class Branches:
    """Prefixes by digest: those that the proposals of one drafter were conditioned on, and those that they lead to.

    Invariants: a dead prefix differs from the committed one at a step that is committed, so it can never become it. A
    prefix whose parent is not known counts as alive until its own step is committed. Nothing shorter than the committed
    prefix is remembered.
    """

    def __init__(self) -> None:
        self._children: dict[bytes, tuple[int, set[bytes]]] = {}  # by parent: its length, and continuations
        self._dead: dict[bytes, int] = {}  # with their length
        self._num_children = 0

    def __len__(self) -> int:
        return self._num_children + len(self._dead)

    def add(self, digest: bytes, length: int, token: int) -> None:
        """A proposal conditioned on the prefix `digest` of that length drew `token`."""
        if len(self) >= MAX_PREFIXES:
            return
        child = extend_digest(digest, token)
        if digest in self._dead:
            self.kill(child, length + 1)
            return
        _, children = self._children.setdefault(digest, (length, set()))
        self._num_children += child not in children
        children.add(child)

    def is_dead(self, digest: bytes) -> bool:
        """Whether no committed prefix can have this digest any more."""
        return digest in self._dead

    def commit(self, prefix: Prefix) -> None:
        """One token was committed: what does not begin with this prefix is dead."""
        length, committed = len(prefix), prefix.digest
        for parent in [key for key, (size, _) in self._children.items() if size < length]:
            for child in self._pop(parent) - {committed}:
                self.kill(child, length)
        others = [key for key, (size, _) in self._children.items() if size == length and key != committed]
        for digest in others:
            self.kill(digest, length)
        self._dead = {digest: size for digest, size in self._dead.items() if size >= length}

    def clear(self) -> None:
        """The committed tokens were replaced: what was dead may be alive."""
        self._children.clear()
        self._dead.clear()
        self._num_children = 0

    def kill(self, digest: bytes, length: int) -> None:
        """This prefix of that length is dead, and so is whatever continues it."""
        doomed = [(digest, length)]
        while doomed:
            dead, size = doomed.pop()
            doomed += [(child, size + 1) for child in self._pop(dead)]
            if len(self) < MAX_PREFIXES:
                self._dead[dead] = size

    def _pop(self, digest: bytes) -> set[bytes]:
        """Its continuations, which are forgotten."""
        _, children = self._children.pop(digest, (0, set()))
        self._num_children -= len(children)
        return children


MAX_VERDICT_TOKENS = MAX_VARINT_BITS
"""One verdict has at most so many: it says of each by a bit whether it was proposed."""
MAX_AHEAD = 256
"""Proposals, verdicts and claims further than this past the committed prefix are dropped; resends bring them back."""


class Log:
    """The committed prefix, and verdicts that arrived before their turn.

    Invariants: tokens are appended in step order, and only `adopt` removes any. At most MAX_AHEAD verdicts wait, and
    none of them whose last token is committed.
    """

    def __init__(self, session: int, roles: Roles, decider: str, opened_s: float = 0.0) -> None:
        self.prefix = Prefix(session)
        self.epochs = dict.fromkeys(roles.drafters, 0)  # rollbacks of each drafter
        self.decider = decider  # of the next step
        self.verdicts: dict[int, Verdict] = {}  # of the peers, by their first step
        # this party was restarted, and waits for a Resync: it decides nothing
        self.incarnation: int | None = None
        self.view = 0  # Resyncs so far
        self.adopted_view = 0  # of the last Resync that was adopted here
        self.opened_s = self.committed_s = opened_s  # and when the last token was committed
        self._topology = roles.topology

    @property
    def is_synced(self) -> bool:
        """Whether this party has the committed tokens, and waits for no Resync."""
        return self.incarnation is None

    def hold(self, verdict: Verdict) -> bool:
        """Buffer a verdict of a peer until its turn. False: it is too far ahead, and must come again."""
        is_near = verdict.step < len(self.prefix) + MAX_AHEAD
        if is_near and verdict.step + len(verdict.tokens) > len(self.prefix):
            self.verdicts[verdict.step] = verdict
        return is_near

    def take_next(self) -> Verdict | None:
        """Take a peer's verdict from the next step on, if it is there; it may begin before."""
        length = len(self.prefix)
        for step, verdict in self.verdicts.items():
            if step <= length < step + len(verdict.tokens):
                del self.verdicts[step]
                if (count := length - step) == 0:  # of its tokens that are committed
                    return verdict
                return replace(
                    verdict,
                    step=length,
                    tokens=verdict.tokens[count:],
                    accepted=tuple(mask >> count for mask in verdict.accepted),
                    tail=tuple(tail.cut(count) for tail in verdict.tail),
                )
        return None

    def make_verdict(self, result: VerifyResult, num_tokens: int) -> Verdict:
        """The verdict on the next steps: the first tokens of the own aggregator's result."""
        return Verdict(
            step=result.step,
            tokens=result.tokens[:num_tokens],
            accepted=tuple((1 << min(count, num_tokens)) - 1 for count in result.accepted),
            acceptance=tuple(map(in_127ths, result.acceptance)),
            next_decider=result.next_decider,
            tail=tuple(tail.cut(0, num_tokens) for tail in result.tail),
        )

    def append(self, verdict: Verdict, position: int, now_s: float = 0.0) -> None:
        """Commit the token of the next step, which is the one at this position of a verdict."""
        self.committed_s = now_s
        self.prefix.append(verdict.tokens[position])
        for drafter, is_accepted in zip(self.epochs, verdict.accepted_at(position), strict=True):
            self.epochs[drafter] += not is_accepted
        length = len(self.prefix)
        if self.verdicts:
            self.verdicts = {
                step: verdict
                for step, verdict in self.verdicts.items()
                if step + len(verdict.tokens) > length
            }

    def make_resync(self) -> Resync:
        """All committed tokens, for who may not have heard of all of them."""
        return Resync(decider=self._topology.index(self.decider), tokens=tuple(self.prefix.tokens))

    def adopt(self, tokens: Sequence[int], party: str, view: int, decider: str) -> None:
        """Replace what differs from the authority's `tokens` by these, in a new view.

        party: this one, which begins a new epoch if it drafts. decider: of the next step.
        """
        self.prefix.adopt(tokens)
        if party in self.epochs:
            self.epochs[party] += 1
        self.verdicts.clear()
        self.view = self.adopted_view = view
        self.decider, self.incarnation = decider, None


def join_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for successive ones, whose tokens are at most MAX_VERDICT_TOKENS. What is expected of the drafters
    differs from step to step, so the last one's holds for all."""
    step, last = verdicts[0].step, verdicts[-1]
    if len(verdicts) == 1:
        return last
    masks = [
        sum(mask << verdict.step - step for mask, verdict in zip(of_drafter, verdicts, strict=True))
        for of_drafter in zip(*(verdict.accepted for verdict in verdicts), strict=True)
    ]
    tokens = tuple(token for verdict in verdicts for token in verdict.tokens)
    joined = replace(last, step=step, tokens=tokens, accepted=tuple(masks), tail=join_tails(verdicts))
    return joined.for_home()
