"""A token sequence with a digest of each of its prefixes: "is this the same beginning?" in eight bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate


def _start(session: int) -> bytes:
    return blake2b(session.to_bytes(8, "little"), digest_size=8).digest()


@lru_cache(
    maxsize=4096
)  # each party derives a prefix several times: as it is proposed, voted on and committed
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
        self.digests: list[bytes] = [_start(session)]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> bytes:
        """The digest of all tokens."""
        return self.digests[-1]

    def of(self, tokens: Iterable[int]) -> Prefix:
        """Other tokens of the same session."""
        other = Prefix.__new__(Prefix)
        other.tokens, other.digests = [], self.digests[:1]
        other.extend(tokens)
        return other

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

    def common_length(self, tokens: Sequence[int]) -> int:
        """How many leading tokens agree with `tokens`."""
        return common_length(self.tokens, tokens)


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
        for digest in [
            key for key, (size, _) in self._children.items() if size == length and key != committed
        ]:
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
