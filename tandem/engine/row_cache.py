"""Keys and values of some rows, in tensors of a fixed capacity.

Every row begins in column 0, so that a token's column is its position. What lies beyond a row's end is masked and does
not matter, as long as it is finite. So a row is cropped by remembering that it is shorter, and capacity never shows in
a result.
"""

from __future__ import annotations

import torch

from tandem.engine.kv_cache import DocumentCache

BLOCK = 64
"""Capacities and the widths that attention sees are multiples of this."""


def round_up(num_columns: int) -> int:
    """The next multiple of BLOCK."""
    return -(-num_columns // BLOCK) * BLOCK


class RowCache:
    """Keys are stored transposed: [rows, heads, size, capacity], values as [rows, heads, capacity, size].

    So both products of attention are of the kind whose sums do not depend on the number of query columns (`batch`).
    """

    def __init__(self, num_rows: int, num_columns: int) -> None:
        """num_columns: that are expected; it grows if more come."""
        self.num_rows = num_rows
        self.capacity = round_up(num_columns)
        self.keys: dict[int, torch.Tensor] = {}  # by layer, from its first pass on
        self.values: dict[int, torch.Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.nbytes for layers in (self.keys, self.values) for tensor in layers.values())

    def reserve(self, num_columns: int) -> None:
        """Make room for so many columns."""
        if num_columns <= self.capacity:
            return
        self.capacity = round_up(num_columns)
        for layer, keys in self.keys.items():
            missing = self.capacity - keys.shape[3]
            self.keys[layer] = torch.nn.functional.pad(keys, (0, missing))
            self.values[layer] = torch.nn.functional.pad(self.values[layer], (0, 0, 0, missing))

    def add_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Make room for a layer whose keys and values look like these, [..., heads, tokens, size]."""
        heads, key_size, value_size = keys.shape[-3], keys.shape[-1], values.shape[-1]
        # Zeros, because a masked column weighs 0, and 0 times uninitialised memory may be NaN.
        self.keys[layer] = keys.new_zeros((self.num_rows, heads, key_size, self.capacity))
        self.values[layer] = values.new_zeros((self.num_rows, heads, self.capacity, value_size))

    def load(self, row: int, cache: DocumentCache, device: torch.device) -> None:
        """Let a row begin with a document."""
        self.reserve(cache.num_tokens)
        for layer, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
            if layer not in self.keys:
                self.add_layer(layer, keys.to(device), values.to(device))
            self.keys[layer][row, :, :, : cache.num_tokens] = keys.to(device).transpose(1, 2)
            self.values[layer][row, :, : cache.num_tokens] = values.to(device)

    def copy(self, row: int, source: RowCache, source_row: int, num_tokens: int) -> None:
        """Let a row begin with the first tokens of another cache's row."""
        self.reserve(num_tokens)
        for layer, keys in source.keys.items():
            values = source.values[layer]
            if layer not in self.keys:
                self.add_layer(layer, keys.transpose(2, 3), values)
            self.keys[layer][row, :, :, :num_tokens] = keys[source_row, :, :, :num_tokens]
            self.values[layer][row, :, :num_tokens] = values[source_row, :, :num_tokens]

    def save(self, row: int, num_tokens: int) -> DocumentCache:
        """The first tokens of a row, on the CPU."""
        layers = sorted(self.keys)
        keys = (self.keys[layer][row, :, :, :num_tokens].transpose(1, 2) for layer in layers)
        values = (self.values[layer][row, :, :num_tokens] for layer in layers)
        return DocumentCache(tuple(map(_on_cpu, keys)), tuple(map(_on_cpu, values)))


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares no memory with the cache."""
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
