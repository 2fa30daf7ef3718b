"""The documents of a prompt: their caches fetched or computed one by one, then set side by side.

One prefix per forward pass, without padding: in a batch its last bits would depend on the other documents, and an
answer on whether a cache was stored. Knows token ids and tensors; nothing of queries, sessions or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tandem.engine.prefixes import PrefixCache, PrefixStore

if TYPE_CHECKING:
    from tandem.engine.decoding import PreemptibleModel


class Prefixes:
    """Caches of one model's prefixes: from the store, or else computed and stored."""

    def __init__(self, model: PreemptibleModel) -> None:
        self._model = model
        self.store: PrefixStore | None = None  # to be set; None stores nothing
        self.num_hits = 0
        self.num_misses = 0

    def get(
        self, tokens: Sequence[int], is_stale: Callable[[], bool] | None = None, *, is_stored: bool = True
    ) -> PrefixCache:
        """The cache of a prefix of at least one token; Preempted if it must be computed and is_stale() turns True.

        is_stored: whether it goes to the store where it is computed.
        Bit for bit the same wherever it comes from, as long as it was computed by this model with these
        libraries on this kind of processor with as many threads (`fingerprint`).
        """
        cache = None if self.store is None else self.store.get(tokens)
        if cache is not None:
            self.num_hits += 1
            return cache
        cache = _computed(self._model, tokens, is_stale)
        self.num_misses += 1
        if is_stored and self.store is not None:
            self.store.put(tokens, cache)
        return cache

    def statistics(self) -> dict[str, float]:
        """Documents whose cache was there, and was not; bytes of the store."""
        num_bytes = 0 if self.store is None else self.store.num_bytes
        return {"kv_hits": self.num_hits, "kv_misses": self.num_misses, "kv_bytes": num_bytes}


def party_by_party(
    rows: Sequence[PrefixCache | None], num_columns: int, device: torch.device
) -> DynamicCache:
    """One batch of prefixes, each padded on its left with zeros to `num_columns`, as a cache of a model on `device`.

    None is a row without a prefix; not all are. Without the model's configuration every layer keeps all positions,
    sliding windows become masks, and any position can be rolled back.
    """
    batch = DynamicCache()
    num_layers = max(len(row.keys) for row in rows if row is not None)
    for index in range(num_layers):
        layer = DynamicLayer()
        keys = _padded([row.keys[index] if row else None for row in rows], num_columns, device)
        values = _padded([row.values[index] if row else None for row in rows], num_columns, device)
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # update() would copy them once more
        batch.layers.append(layer)
    return batch


def _computed(
    model: PreemptibleModel, tokens: Sequence[int], is_stale: Callable[[], bool] | None
) -> PrefixCache:
    """One forward pass over one prefix, its cache moved to the CPU."""
    cache = DynamicCache()
    ids = torch.tensor([list(tokens)], device=model.device)  # [1, tokens]
    positions = torch.arange(len(tokens), device=model.device)[None]
    model(ids, torch.ones_like(ids), positions, cache, is_stale)
    layers: list[Any] = cache.layers
    return PrefixCache(
        keys=tuple(_alone(layer.keys) for layer in layers),
        values=tuple(_alone(layer.values) for layer in layers),
    )


def _alone(batch: torch.Tensor | None) -> torch.Tensor:
    """[1, heads, tokens, size] -> [heads, tokens, size], contiguous on the CPU."""
    assert batch is not None  # the pass filled every layer
    return batch[0].cpu().contiguous()


def _padded(rows: Sequence[torch.Tensor | None], num_columns: int, device: torch.device) -> torch.Tensor:
    """[rows] of [heads, tokens, size] -> [rows, heads, columns, size], zeros on the left.

    Zeros and not leftovers: a masked column weighs 0, and 0 times whatever memory holds may be no number.
    """
    filled = [(row, tensor) for row, tensor in enumerate(rows) if tensor is not None]
    heads, _, size = filled[0][1].shape
    batch = torch.zeros((len(rows), heads, num_columns, size), dtype=filled[0][1].dtype, device=device)
    for row, tensor in filled:
        batch[row, :, num_columns - tensor.shape[1] :] = tensor
    return batch
