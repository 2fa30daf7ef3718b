"""Key-value caches of document prefixes: what one is, what keeps them, and keeping them in memory.

A prefix (beginning-of-sequence and the document part of a row) starts at position 0 and is computed alone, so its
cache is a function of the model and the prefix's tokens: computed once, it serves every question. This module
knows neither models nor files.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Keys and values of one prefix; read only."""

    keys: tuple[torch.Tensor, ...]  # [layers] of [key-value heads, tokens, head size]
    values: tuple[torch.Tensor, ...]  # [layers] of [key-value heads, tokens, head size]

    @property
    def num_tokens(self) -> int:
        """Length of the prefix."""
        return self.keys[0].shape[1]

    @property
    def num_bytes(self) -> int:
        """What the tensors hold."""
        return sum(tensor.nbytes for tensor in self.keys + self.values)


class PrefixStore(Protocol):
    """Keeps the caches of one model. A store may forget any entry, but never gives that of other tokens."""

    @property
    def num_bytes(self) -> int:
        """What it holds."""

    def get(self, tokens: Sequence[int]) -> PrefixCache | None:
        """The cache of a prefix, on the CPU; None if it is not held."""

    def put(self, tokens: Sequence[int], cache: PrefixCache) -> None:
        """Keep a cache, on the CPU, if there is room for it at all. It is not changed afterwards."""


class MemoryPrefixes:
    """A store in this process that forgets what was used least recently. Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: of all tensors together; 0 keeps nothing."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, ...], PrefixCache] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __len__(self) -> int:
        """Number of prefixes held."""
        return len(self._entries)

    def get(self, tokens: Sequence[int]) -> PrefixCache | None:
        """The cache of a prefix, which is now the one used last."""
        key = tuple(tokens)
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, tokens: Sequence[int], cache: PrefixCache) -> None:
        """Keep a cache, and forget the least recently used ones beyond the budget."""
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
