"""What a loaded model tells the other parties of itself, which they compare with their own before the first query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.engine.engine import Engine


def describe(engine: Engine) -> dict[str, Any]:
    """Plain values for JSON. Reads every weight once."""
    return {
        "tokenizer": engine.tokenizer_name,
        "template": engine.template.describe(),
        "template_fingerprint": engine.template.fingerprint,
        "writes_day": engine.template.writes_day,
        "vocabulary_fingerprint": engine.vocabulary_fingerprint,
        "vocabulary_prefixes": list(engine.vocabulary_prefixes),
        "weights_fingerprint": engine.weights_fingerprint,
        "vocab_size": engine.vocab_size,
        "num_parameters": engine.model.num_parameters(),
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "context_length": engine.context_length,
        "eos_token_ids": list(engine.eos_token_ids),
        "batching": engine.fallback,  # why sessions are not batched; "" if they are
    }
