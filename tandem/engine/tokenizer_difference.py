"""What two tokenizers have and have not in common, in words."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

from tandem.engine.tokenizer import common_size, fingerprint_prefixes


def describe_tokenizer(tokenizer: Tokenizer, wrapper: Any) -> str:
    """Its family and size, as in "Qwen2 tokenizer, 151,665 tokens". wrapper: transformers' view of it."""
    family = re.sub(r"Tokenizer|sBackend|Fast$|^PreTrained", "", type(wrapper).__name__)
    kind = family or type(tokenizer.model).__name__
    return f"{kind} tokenizer, {tokenizer.get_vocab_size(with_added_tokens=True):,} tokens"


def find_difference(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    """Why two models with these tokenizers cannot work together, in part of a sentence; None if they can."""
    if common_size(_describe(first), _describe(second)) is not None:
        return None
    return (
        _in_tokens(first, second)
        or _in_length(first, second, names)
        or _in_special_tokens(first, second, names)
        or f"they turn tokens into text differently ({_decoder(first)} and {_decoder(second)})"
    )


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    prefixes = fingerprint_prefixes(tokenizer)
    return {"vocab_size": max(_by_id(tokenizer)) + 1, "vocabulary_prefixes": prefixes}


def find_extra(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    """Which tokens of two models that can work together only one has, in part of a sentence; None if there is none."""
    return _in_length(first, second, names)


def _in_tokens(first: Tokenizer, second: Tokenizer) -> str | None:
    tokens, others = _by_id(first), _by_id(second)
    shared = sorted(set(tokens) & set(others))
    differing = [index for index in shared if tokens[index] != others[index]]
    if not differing:
        return None
    index = differing[0]
    return (
        f"they differ at id {index} ({tokens[index]!r} and {others[index]!r})"
        + f" and at {len(differing) - 1:,} other ids" * (len(differing) > 1)
    )


def _in_length(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    tokens, others = _by_id(first), _by_id(second)
    for one, other, name in ((tokens, others, names[0]), (others, tokens, names[1])):
        if extra := sorted(set(one) - set(other)):
            return f"only the {name}'s has id {extra[0]} ({one[extra[0]]!r})" + (
                f" and {len(extra) - 1:,} more" * (len(extra) > 1)
            )
    return None


def _in_special_tokens(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    special, others = _special(first), _special(second)
    for one, other, name in ((special, others, names[0]), (others, special, names[1])):
        if extra := sorted(set(one) - set(other)):
            return f"id {extra[0]} ({one[extra[0]]!r}) is a special token for the {name} alone"
    return None


def _by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}


def _special(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.get_added_tokens_decoder()
    return {index: token.content for index, token in added.items() if token.special}


def _decoder(tokenizer: Tokenizer) -> str:
    """Names of its steps."""
    decoder = json.loads(tokenizer.to_str())["decoder"] or {"type": "none"}
    steps = decoder.get("decoders", [decoder])
    return ", ".join(str(step["type"]) for step in steps)
