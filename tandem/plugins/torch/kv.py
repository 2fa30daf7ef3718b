"""Keys and values of one document, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save


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


def name_tensors(cache: DocumentCache) -> dict[str, torch.Tensor]:
    """A cache's tensors by the names that they have in a file."""
    tensors = {f"{index}.keys": tensor for index, tensor in enumerate(cache.keys)}
    return tensors | {f"{index}.values": tensor for index, tensor in enumerate(cache.values)}


def build_cache(get: Callable[[str], torch.Tensor], num_layers: int, num_tokens: int) -> DocumentCache:
    """Inverse of `name_tensors`; ValueError if a tensor has another number of tokens."""
    keys = tuple(get(f"{index}.keys") for index in range(num_layers))
    values = tuple(get(f"{index}.values") for index in range(num_layers))
    for tensor in keys + values:
        if tensor.ndim != 3 or tensor.shape[1] != num_tokens:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} for {num_tokens} tokens")
    return DocumentCache(keys=keys, values=values)


class TorchForm:
    """The `CacheForm` of `DocumentCache`."""

    framework = "pt"

    def tensors(self, cache: DocumentCache) -> dict[str, torch.Tensor]:
        """Keys and values of all layers, by name."""
        return name_tensors(cache)

    def build(self, get: Callable[[str], Any], num_tensors: int, num_tokens: int) -> DocumentCache:
        """The cache of tensors that are got by name."""
        return build_cache(get, num_tensors // 2, num_tokens)

    def save(self, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
        """The content of a file."""
        return save(dict(tensors), metadata)

    def bytes_of(self, tensor: torch.Tensor) -> memoryview:
        """The bytes of a tensor, without a copy where it is contiguous."""
        return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
