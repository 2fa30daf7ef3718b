"""Key-value caches of documents: what one is, where they are kept, and what a prompt looks up.

A row begins with its document (and the beginning-of-sequence token) at position 0, and that part sees nothing but
itself. So its cache is a function of the model and of these tokens, and computed once it serves every question.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tandem.engine.prompt import Prompt


@dataclass(frozen=True, slots=True)
class DocumentCache:
    """Keys and values of one document's tokens; read only."""

    keys: tuple[torch.Tensor, ...]  # [layers] of [key-value heads, tokens, head size]
    values: tuple[torch.Tensor, ...]  # [layers] of [key-value heads, tokens, head size]

    @property
    def num_tokens(self) -> int:
        """Length of the document part, beginning-of-sequence included."""
        return self.keys[0].shape[1]

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.nbytes for tensor in self.keys + self.values)


class CacheStore(Protocol):
    """Keeps the caches of one model. A store may forget any entry, but never returns that of other tokens."""

    @property
    def num_bytes(self) -> int:
        """Size of everything it holds."""

    def get(self, tokens: Sequence[int]) -> DocumentCache | None:
        """The cache of a document's tokens, on the CPU; None if it is not held."""

    def put(self, tokens: Sequence[int], cache: DocumentCache) -> None:
        """Keep a cache, on the CPU, if there is room for it at all. It is not changed afterwards."""


class MemoryStore:
    """A store in this process that evicts what was used least recently. Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: of all tensors together; 0 keeps nothing."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, ...], DocumentCache] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __len__(self) -> int:
        """Number of documents held."""
        return len(self._entries)

    def get(self, tokens: Sequence[int]) -> DocumentCache | None:
        """The cache of a document's tokens, which becomes the most recently used."""
        key = tuple(tokens)
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, tokens: Sequence[int], cache: DocumentCache) -> None:
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
    """The caches of one model's documents: found in the store, or computed by whoever needs them and kept."""

    def __init__(self) -> None:
        self.store: CacheStore | None = None  # to be set; None stores nothing
        self.num_hits = 0
        self.num_misses = 0

    def find(self, tokens: Sequence[int]) -> DocumentCache | None:
        """The stored cache of at least one token.

        It has the bits that computing it would give, as long as it was computed by this model with the same libraries,
        kind of processor and number of threads (`fingerprint_computation`).
        """
        cache = None if self.store is None else self.store.get(tokens)
        self.num_hits += cache is not None
        return cache

    def keep(
        self, tokens: Sequence[int], make: Callable[[], DocumentCache], *, is_stored: bool = True
    ) -> None:
        """A cache was computed; `make` copies it. is_stored: whether it goes to the store."""
        self.num_misses += 1
        if is_stored and self.store is not None:
            self.store.put(tokens, make())

    def statistics(self) -> dict[str, float]:
        """Documents whose cache was found, those whose was not, and the size of the store in bytes."""
        num_bytes = 0 if self.store is None else self.store.num_bytes
        return {"kv_hits": self.num_hits, "kv_misses": self.num_misses, "kv_bytes": num_bytes}


def split_prompt(prompt: Prompt) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """The documents' tokens [rows], and what follows each [rows, new], which has at least one token."""
    documents = list(prompt.document_tokens)
    if prompt.query_tokens:
        return documents, [list(prompt.query_tokens)] * len(documents)
    return [tokens[:-1] for tokens in documents], [[tokens[-1]] for tokens in documents]
