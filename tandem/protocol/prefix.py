"""A token sequence with a digest of each of its prefixes: "is this the same beginning?" in eight bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b


def _start(session: int) -> bytes:
    return blake2b(session.to_bytes(8, "little"), digest_size=8).digest()


@lru_cache(
    maxsize=4096
)  # each party derives a prefix several times: as it is proposed, voted on and committed
def extend_digest(digest: bytes, token: int) -> bytes:
    """The digest of a prefix with one more token."""
    return blake2b(digest + token.to_bytes(4, "little"), digest_size=8).digest()


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
        """Of all tokens."""
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

    def common_length(self, tokens: Sequence[int]) -> int:
        """How many leading tokens agree with `tokens`."""
        return common_length(self.tokens, tokens)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))
