"""The fallback of models and devices that fail `find_fault`: a growing cache for each row, one row in each pass.

The shape of a pass follows from its row alone: blocks of BLOCK tokens of a document and of what follows it, then one
token at a time. A row's keys and values are then a function of its own tokens, so what is computed again after a
rollback, or after a pass that was abandoned between two layers, equals what was never interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from tandem.engine.kv import Cache
from tandem.engine.port import IsStale
from tandem.engine.session import RowCache, Segment
from tandem.plugins.torch.batch import MAX_TOKENS, TorchModel, layers_of, to_cache

BLOCK = 64
"""Tokens of a prompt that a pass computes."""


class GrowingRows(RowCache):
    """A cache of transformers for each row.

    Without the model's configuration every layer keeps all positions, sliding windows become masks, and any position
    can be rolled back.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._device = device
        self.rows = [DynamicCache() for _ in range(num_rows)]

    def load(self, row: int, cache: Cache) -> None:
        """Begin a row with a document's keys and values."""
        self.rows[row] = DynamicCache()
        for layer, (keys, values) in enumerate(layers_of(cache, self._device)):
            self.rows[row].update(keys[None], values[None], layer)

    def rewind(self, row: int, num_tokens: int) -> int:
        """Cut every layer to so many columns."""
        for layer in _layers(self.rows[row]):
            if (excess := layer.get_seq_length() - num_tokens) > 0:
                layer.crop(-excess)
        return num_tokens

    def save(self, row: int, num_tokens: int) -> Cache:
        """The first tokens of a row."""
        layers = [
            (layer.keys[0, :, :num_tokens], layer.values[0, :, :num_tokens])
            for layer in _layers(self.rows[row])
        ]
        return to_cache(layers, num_tokens)


def _layers(cache: DynamicCache) -> list[Any]:
    return list(cache.layers)


class GrowingModel(TorchModel):
    """A model of transformers with its own attention."""

    max_tokens = MAX_TOKENS
    block = BLOCK
    expected_tokens = 0
    arithmetic = "growing-1"

    def make_cache(self, num_rows: int, num_columns: int) -> GrowingRows:
        """A cache of tensors, on the model's device."""
        return GrowingRows(num_rows, self.device)

    def __call__(self, segments: Sequence[Segment], is_stale: IsStale | None = None) -> list[torch.Tensor]:
        """Compute the segments one after another, as each is a block of one row."""
        return [self._compute(segment, is_stale) for segment in segments]

    def _compute(self, segment: Segment, is_stale: IsStale | None) -> torch.Tensor:
        row, (start,), (tokens,) = segment.first_row, segment.starts, segment.tokens
        cache: GrowingRows = segment.cache
        cache.rewind(row, start)  # an abandoned pass left some layers longer than others
        end = start + len(tokens)
        logits = self.run(
            is_stale,
            input_ids=torch.tensor([tokens], device=self.device),
            attention_mask=torch.ones((1, end), dtype=torch.long, device=self.device),
            position_ids=torch.arange(start, end, device=self.device)[None],
            past_key_values=cache.rows[row],
            use_cache=True,
            logits_to_keep=max(1, segment.num_logits),  # 0 would be all
        )
        return logits[:, logits.shape[1] - segment.num_logits :].float()
