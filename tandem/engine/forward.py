"""A causal model whose forward pass can be abandoned between two layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

IsStale = Callable[[], bool]
"""Asked before every layer; once it says True, the pass raises Preempted."""


class Preempted(Exception):
    """A forward pass was abandoned because its result is no longer wanted. The cache is consistent again."""


class PreemptibleModel:
    """A causal model whose forward pass asks before every decoder layer whether it is still wanted."""

    def __init__(self, model: Any, layers: Sequence[torch.nn.Module]) -> None:
        self.model = model
        self.device: torch.device = model.device
        self._is_stale: IsStale | None = None
        for layer in layers:
            layer.register_forward_pre_hook(self._check)

    def __call__(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: DynamicCache,
        is_stale: IsStale | None,
        num_logits: int = 1,
    ) -> torch.Tensor:
        """Logits [rows, num_logits, vocab of the model] after the last of `ids`, extending `cache`; may be Preempted.

        ids, positions: [rows, new]. mask: [rows, cached + new], 0 for padding. An abandoned pass leaves some
        layers of `cache` longer than others.
        """
        return self.run(
            is_stale,
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=num_logits,
        )

    def run(self, is_stale: IsStale | None, **inputs: Any) -> torch.Tensor:
        """The logits of one pass over `inputs`; may raise Preempted."""
        self._is_stale = is_stale
        try:
            with torch.inference_mode():
                return torch.as_tensor(self.model(**inputs).logits)
        finally:
            self._is_stale = None

    def _check(self, _layer: torch.nn.Module, _inputs: Any) -> None:
        if self._is_stale is not None and self._is_stale():
            raise Preempted
