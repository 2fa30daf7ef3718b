"""Key-value caches of documents: what one is, where they are kept, and how they become the batch of a prompt.

A row begins with its document (and the beginning-of-sequence token) at position 0, and that part sees nothing but
itself. So its cache is a function of the model and of these tokens, and computed once it serves every question. Each
document has a forward pass of its own, without padding: in a batch its last bits would depend on the other
documents, and an answer on whether a cache was stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tandem.engine.forward import IsStale, PreemptibleModel


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
    """The caches of one model's documents: from the store, or else computed and stored."""

    def __init__(self, model: PreemptibleModel) -> None:
        self._model = model
        self.store: CacheStore | None = None  # to be set; None stores nothing
        self.num_hits = 0
        self.num_misses = 0

    def get(
        self, tokens: Sequence[int], is_stale: IsStale | None = None, *, is_stored: bool = True
    ) -> DocumentCache:
        """The cache of at least one token; Preempted if it must be computed and is_stale() turns True.

        is_stored: whether a cache that is computed goes to the store. Wherever it comes from, it has the same bits, as
        long as it was computed by this model with the same libraries, kind of processor and number of threads
        (`fingerprint_computation`).
        """
        cache = None if self.store is None else self.store.get(tokens)
        if cache is not None:
            self.num_hits += 1
            return cache
        cache = _compute(self._model, tokens, is_stale)
        self.num_misses += 1
        if is_stored and self.store is not None:
            self.store.put(tokens, cache)
        return cache

    def statistics(self) -> dict[str, float]:
        """Documents whose cache was found, those whose was not, and the size of the store in bytes."""
        num_bytes = 0 if self.store is None else self.store.num_bytes
        return {"kv_hits": self.num_hits, "kv_misses": self.num_misses, "kv_bytes": num_bytes}


def stack_rows(rows: Sequence[DocumentCache | None], num_columns: int, device: torch.device) -> DynamicCache:
    """One batch of documents, each padded on its left with zeros to `num_columns`, as a model's cache on `device`.

    None is a row without any token; at least one row has some. Without the model's configuration every layer keeps all
    positions, sliding windows become masks, and any position can be rolled back.
    """
    batch = DynamicCache()
    num_layers = max(len(row.keys) for row in rows if row is not None)
    for index in range(num_layers):
        layer = DynamicLayer()
        keys = pad_left([row.keys[index] if row else None for row in rows], num_columns, device)
        values = pad_left([row.values[index] if row else None for row in rows], num_columns, device)
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # update() would copy them once more
        batch.layers.append(layer)
    return batch


def pad_left(rows: Sequence[torch.Tensor | None], num_columns: int, device: torch.device) -> torch.Tensor:
    """[rows] of [heads, tokens, size] -> [rows, heads, columns, size], zeros on the left.

    Zeros, because a masked column weighs 0, and 0 times uninitialised memory may be NaN.
    """
    filled = [(row, tensor) for row, tensor in enumerate(rows) if tensor is not None]
    heads, _, size = filled[0][1].shape
    batch = torch.zeros((len(rows), heads, num_columns, size), dtype=filled[0][1].dtype, device=device)
    for row, tensor in filled:
        batch[row, :, num_columns - tensor.shape[1] :] = tensor
    return batch


def _compute(model: PreemptibleModel, tokens: Sequence[int], is_stale: IsStale | None) -> DocumentCache:
    """One forward pass over one document, its cache moved to the CPU."""
    cache = DynamicCache()
    ids = torch.tensor([list(tokens)], device=model.device)  # [1, tokens]
    positions = torch.arange(len(tokens), device=model.device)[None]
    model(ids, torch.ones_like(ids), positions, cache, is_stale)
    layers: list[Any] = cache.layers
    return DocumentCache(
        keys=tuple(_take_row(layer.keys) for layer in layers),
        values=tuple(_take_row(layer.values) for layer in layers),
    )


def _take_row(batch: torch.Tensor | None) -> torch.Tensor:
    """[1, heads, tokens, size] -> [heads, tokens, size], contiguous on the CPU."""
    assert batch is not None  # the pass filled every layer
    return batch[0].cpu().contiguous()
