"""Caches of documents as bytes, for another engine of the same weights on another machine.

For DRAGON's baseline that sends documents and their stored caches across the link (DRCG/KV). Whoever holds a cache can
read its document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from tandem.engine.engine import Engine
from tandem.engine.kv import CacheStore
from tandem.errors import GenerationError
from tandem.plugins.torch.kv import DocumentCache, build_cache, name_tensors

FORMAT = "tandem-lent-1"
ABOUT = "about"
"""The tensor that holds, as JSON in bytes, what the others are."""


def pack(engine: Engine, documents: Sequence[str]) -> bytes:
    """The caches of `documents`, computed where they are not stored, as one safetensors file.

    GenerationError if a document is longer than the context.
    """
    about = {
        "format": FORMAT,
        "weights": engine.weights_fingerprint,
        "prefixes": [list(engine.document_tokens(document)) for document in documents],
    }
    named = {ABOUT: torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)}
    for number, document in enumerate(documents):
        named |= {
            f"{number}.{name}": tensor
            for name, tensor in name_tensors(cast("DocumentCache", engine.document_cache(document))).items()
        }
    return bytes(save(named))


def unpack(engine: Engine, documents: Sequence[str], data: bytes, store: CacheStore) -> None:
    """Put the caches of `documents`, which another engine packed, into `store`.

    Raises GenerationError, and puts nothing, if they are damaged, of other weights, or of other tokens.
    """
    about, named = _parse(data)
    if about["weights"] != engine.weights_fingerprint:
        raise GenerationError(
            "Caches can be lent only between engines of the same weights and precision: these are of "
            f"{about['weights'][:8]}, the engine here has {engine.weights_fingerprint[:8]}. "
            "Set the same model and dtype on both sides."
        )
    prefixes = [engine.document_tokens(document) for document in documents]
    if [list(tokens) for tokens in prefixes] != about["prefixes"]:
        raise GenerationError(
            f"Not all of these {len(documents)} lent caches are of the documents asked for, as this engine's template "
            "formats them; use the same documents, tokenizer and template.json on both sides."
        )
    caches = [_cache(named, number, tokens) for number, tokens in enumerate(prefixes)]
    for tokens, cache in zip(prefixes, caches, strict=True):
        store.put(tokens, cache)


def _cache(named: dict[str, torch.Tensor], number: int, tokens: Sequence[int]) -> DocumentCache:
    num_layers = sum(name.startswith(f"{number}.") for name in named) // 2
    try:
        return build_cache(lambda name: named[f"{number}.{name}"], num_layers, len(tokens))
    except (KeyError, ValueError) as error:
        raise _damaged(error) from None


def _parse(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What the caches are about, and the tensors."""
    try:
        named = load(data)
        about = json.loads(bytes(named.pop(ABOUT).numpy()))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']!r}")
        return about, named
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> GenerationError:
    return GenerationError(f"The lent caches cannot be read ({str(error)[:80]}); ask for them again.")
