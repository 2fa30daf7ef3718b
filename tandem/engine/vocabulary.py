"""What two models must share to answer together: the vocabulary, as a fingerprint, and its special tokens.

It knows tokenizers, and nothing of texts or of the models' weights beyond their configurations.

A law covers the ids below `vocab_size`, the highest id of the *tokenizer* plus one. Models pad their logits
to a round number beyond it, each size differently (one tokenizer of 151,665 tokens meets 151,936 and 152,064
logits); those columns name no token, so they are cut off before the softmax, and such models work together.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tokenizers import Tokenizer

from tandem.errors import GenerationError

_FOR_ENCODING = ("add_prefix_space", "trim_offsets", "use_regex", "split")


def vocab_size(tokenizer: Tokenizer, num_logits: int, model: str) -> int:
    """Number of ids that a law covers. GenerationError if the model, of `num_logits` outputs, lacks some."""
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    if size > num_logits:
        raise GenerationError(
            f"A tokenizer's ids must fit its model, in {model!r} they reach {size - 1} and the model has "
            f"{num_logits} outputs; use the tokenizer that was saved with the model."
        )
    return size


def fingerprint(tokenizer: Tokenizer) -> str:
    """32 hex digits over what turns tokens into text: the map to ids, the ids of special tokens, the decoder.

    Stop strings are searched for in text, so with different decoders two sides would stop at different steps.
    Which special token *ends* an answer is no part of it: a base model and its chat version differ in that,
    share the vocabulary, and the end is agreed on with each query.
    """
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=True).items())
    special = sorted(index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    decoder = _without_options(json.loads(tokenizer.to_str())["decoder"])
    content = json.dumps([tokens, special, decoder], ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(content.encode("ascii")).hexdigest()[:32]


def _without_options(decoder: Any) -> Any:
    """A decoder's JSON without the options that matter only when text is encoded; tokenizers of one family differ
    in those.
    """
    if isinstance(decoder, dict):
        return {key: _without_options(value) for key, value in decoder.items() if key not in _FOR_ENCODING}
    return [_without_options(step) for step in decoder] if isinstance(decoder, list) else decoder


def eos_token_ids(generation_config: Any, config: Any, wrapper: Any, size: int) -> tuple[int, ...]:
    """The ids (below `size`) that end an answer, ascending.

    The tokenizer's own, and those of a generation configuration that somebody wrote. One that transformers
    derived from the model's configuration, and that configuration itself, count only where nothing else is
    known: their defaults name an id (2 for Llama) whatever the tokenizer means by it.
    """
    ids = _as_set(wrapper.eos_token_id)
    if generation_config is not None and not getattr(generation_config, "_from_model_config", False):
        ids |= _as_set(generation_config.eos_token_id)
    ids = ids or _as_set(getattr(config, "eos_token_id", None))
    return tuple(sorted(index for index in ids if 0 <= index < size))


def _as_set(ids: int | list[int] | None) -> set[int]:
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
