"""Log probabilities in OpenAI's forms: what a request asks for, and what a completion holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tandem.client.request import MAX_TOP_LOGPROBS
from tandem.events import TokenEvent, TokenLogprob
from tandem.server.errors import bad_request

OPTIONS = ("logprobs", "top_logprobs")
"""Of a request; in a chat the first is true or false, of a text completion it is the number."""


def read_logprobs(body: Mapping[str, Any], *, is_chat: bool) -> int | None:
    """How many likeliest tokens come with each token; None: no log probabilities. Raises ApiError."""
    wanted, top = (body.get(name) for name in OPTIONS)
    if is_chat and not isinstance(wanted, bool | None):
        raise bad_request(f"logprobs must be true or false, but it is {wanted!r:.40}.", "logprobs")
    if top and not (is_chat and wanted):
        remedy = "set logprobs to true" if is_chat else "set logprobs to the number"
        raise bad_request(
            f"top_logprobs is {top!r:.40}, but logprobs is {wanted!r:.40}; {remedy}.", OPTIONS[1]
        )
    if wanted is None or wanted is False:
        return None
    name, number = (OPTIONS[1], top or 0) if is_chat else (OPTIONS[0], wanted)
    if type(number) is not int or not 0 <= number <= MAX_TOP_LOGPROBS:
        raise bad_request(
            f"{name} must be a whole number from 0 to {MAX_TOP_LOGPROBS}, but it is {number!r:.40}.", name
        )
    return number


def in_chat_form(tokens: Iterable[TokenEvent]) -> dict[str, Any]:
    """Of the tokens of a chat completion, or of a part of one."""
    content = [
        {**_entry(token.logprob), "top_logprobs": [_entry(top) for top in token.top_logprobs]}
        for token in tokens
        if token.logprob is not None
    ]
    return {"content": content, "refusal": None}


def in_text_form(tokens: Iterable[TokenEvent], text: str = "") -> dict[str, Any]:
    """Of the tokens of a text completion, or of a part of one. text: of all tokens before.

    A token's offset is the number of characters of the answer before it.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    for token in tokens:
        if (own := token.logprob) is not None:
            top = {each.text: each.logprob for each in (*token.top_logprobs, own)}
            row = (own.text, own.logprob, top, len(text.lstrip()))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        text += token.text
    return columns


def _entry(named: TokenLogprob) -> dict[str, Any]:
    return {
        "token": named.text,
        "logprob": named.logprob,
        "bytes": None if named.utf8 is None else list(named.utf8),
    }
