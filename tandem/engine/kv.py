"""What an engine keeps of what it has computed: documents' caches, and the rows of ended queries.

A row begins with its document (and the beginning-of-sequence token) at position 0, and that part sees nothing but
itself. So its cache is a function of the model and of these tokens, and computed once it serves every question. What a
cache consists of, only the runner knows that made it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Cache(Protocol):
    """A runner's state after some tokens."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""


class CacheStore(Protocol):
    """Keeps the caches of one model. A store may forget any entry, but never returns that of other tokens."""

    @property
    def num_bytes(self) -> int:
        """Size of everything it holds."""

    def get(self, tokens: Sequence[int]) -> Any | None:
        """The cache of a document's tokens, on the CPU; None if it is not held."""

    def put(self, tokens: Sequence[int], cache: Any) -> None:
        """Keep a cache, on the CPU, if there is room for it at all. It is not changed afterwards."""


class MemoryStore:
    """A store in this process that evicts what was used least recently. Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: of all tensors together; 0 keeps nothing."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __len__(self) -> int:
        """Number of documents held."""
        return len(self._entries)

    def get(self, tokens: Sequence[int]) -> Any | None:
        """The cache of a document's tokens, which becomes the most recently used."""
        key = tuple(tokens)
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, tokens: Sequence[int], cache: Any) -> None:
        """Keep a cache, and evict the least recently used ones beyond the budget."""
        key = tuple(tokens)
        if cache.num_bytes > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                self.num_bytes -= self._entries.pop(key).num_bytes
            self._entries[key] = cache
            self.num_bytes += cache.num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._entries.popitem(last=False)[1].num_bytes


class DocumentCaches:
    """The caches of one model's documents: found in the store, or computed where they are needed and kept."""

    def __init__(self) -> None:
        self.store: CacheStore | None = None  # to be set; None stores nothing
        self.num_hits = 0
        self.num_misses = 0

    def find(self, tokens: Sequence[int]) -> Any | None:
        """The stored cache of at least one token.

        It has the bits that computing it would give, as long as it was computed by this model with the same libraries,
        kind of processor and number of threads (`fingerprint_computation`).
        """
        cache = None if self.store is None else self.store.get(tokens)
        self.num_hits += cache is not None
        return cache

    def keep(self, tokens: Sequence[int], make: Callable[[], Any], *, is_stored: bool = True) -> None:
        """A cache was computed; `make` copies it. is_stored: whether it goes to the store."""
        self.num_misses += 1
        if is_stored and self.store is not None:
            self.store.put(tokens, make())

    def statistics(self) -> dict[str, float]:
        """Documents whose cache was found, those whose was not, and the size of the store in bytes."""
        num_bytes = 0 if self.store is None else self.store.num_bytes
        return {"kv_hits": self.num_hits, "kv_misses": self.num_misses, "kv_bytes": num_bytes}


# ---- Rows of queries that have ended ---------------------------------------------------------------------------


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))


Rows = tuple[tuple[int, ...], ...]
"""The tokens of each row."""


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The beginning of a kept row."""

    cache: Any
    row: int
    num_tokens: int


class TurnCaches:
    """The rows of ended queries, in memory; those that were used least recently are evicted first.

    Invariants: they take at most `max_bytes`, and none is there whose rows all begin rows of a later one.
    """

    def __init__(self) -> None:
        self.max_bytes = 0  # to be set; 0 keeps nothing
        self.num_bytes = 0
        self.num_reused = 0  # tokens behind the documents, of all rows, that were not computed again
        self._kept: dict[Rows, Any] = {}  # least recently used first

    def keep(self, rows: Rows, cache: Any) -> None:
        """A query has ended. cache: its rows, of which these tokens are computed; it is not changed afterwards."""
        if cache.num_bytes > self.max_bytes:
            return
        for other in [other for other in self._kept if _is_continued(other, rows)]:
            self._drop(other)
        self._kept[rows] = cache
        self.num_bytes += cache.num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, tokens: Sequence[int], num_document: int) -> KeptPrefix | None:
        """The longest beginning of these tokens that a kept row has; None if it has not their document.

        num_document: tokens of the document, with which they begin; it may be 0.
        """
        tokens, least = tuple(tokens), num_document
        best: tuple[Rows, KeptPrefix] | None = None
        for rows, cache in self._kept.items():
            for number, row in enumerate(rows):
                if row[:least] == tokens[:least] and (length := common_length(row, tokens)) >= max(1, least):
                    best = rows, KeptPrefix(cache, number, length)
                    least = length + 1
        if best is None:
            return None
        rows, prefix = best
        self._kept[rows] = self._kept.pop(rows)  # now the last to be evicted
        self.num_reused += prefix.num_tokens - num_document
        return prefix

    def statistics(self) -> dict[str, float]:
        """Tokens behind the documents that were not computed again, counted in each row, and the bytes held."""
        return {"turn_tokens": self.num_reused, "turn_bytes": self.num_bytes}

    def _drop(self, rows: Rows) -> None:
        self.num_bytes -= self._kept.pop(rows).num_bytes


def _is_continued(rows: Rows, later: Rows) -> bool:
    return all(any(longer[: len(row)] == row for longer in later) for row in rows)
