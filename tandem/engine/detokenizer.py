"""Tokens to text, whole or as a stream, and when an answer ends.

Needs the `tokenizers` package alone, so a process that only shows an answer never imports torch or
transformers. Everything is a function of the committed tokens: both sides stop at the same step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tokenizers import Tokenizer

from tandem.errors import GenerationError

StopReason = Literal["eos", "stop", "length"]

_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_INCOMPLETE = "\ufffd"  # what decoders print for bytes that are not (yet) UTF-8


class Detokenizer:
    """The decoding half of a tokenizer, from its serialised form (`Engine.tokenizer_json`)."""

    def __init__(self, tokenizer_json: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the tokenizers package raises bare Exception
            raise GenerationError(
                f"A serialised tokenizer must be the JSON of a fast tokenizer, this one is not ({error}); "
                "take Engine.tokenizer_json."
            ) from None
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(index for index, token in added.items() if token.special)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's `tokens`, special tokens left out.

        Decoded as one sequence: a byte-level tokenizer keeps the space that leads the first word, a
        SentencePiece one drops it, as each does for any text of its own.
        """
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def settled_text(self, tokens: Sequence[int]) -> str:
        """The beginning of `text(tokens)` that no further token can change.

        Byte-level decoders revise an unfinished character only. Byte fallback (`<0x0A>`) revises a whole run of
        byte tokens, which is valid or not as one; tokens without text do not end a run.
        """
        end = len(tokens)
        while end and self._may_continue_run(tokens[end - 1]):
            end -= 1
        return self.text(tokens[:end]).rstrip(_INCOMPLETE)

    def _may_continue_run(self, index: int) -> bool:
        token = self._tokenizer.id_to_token(index)
        return token is None or index in self._special or _BYTE_TOKEN.fullmatch(token) is not None


@dataclass(frozen=True, slots=True)
class StopRule:
    """When an answer ends: travels with the query, and both sides apply it, to committed tokens only.

    eos_token_ids: tokens that end the answer. stop_strings: texts that end it; they need a `detokenizer`.
    max_new_tokens: tokens at most.
    """

    eos_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    max_new_tokens: int = 256
    detokenizer: Detokenizer | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise GenerationError(
                f"max_new_tokens is at least 0, it is {self.max_new_tokens}; set it higher."
            )
        if "" in self.stop_strings:
            raise GenerationError("A stop string has at least one character, one is empty; leave it out.")
        if self.stop_strings and self.detokenizer is None:
            raise GenerationError(
                f"Stop strings are found in text, {list(self.stop_strings)} have no detokenizer; pass one."
            )

    def finished(self, tokens: Sequence[int]) -> StopReason | None:
        """Why the answer ends with, or before the end of, the committed `tokens`; None while it goes on."""
        if any(token in self.eos_token_ids for token in tokens):
            return "eos"
        if self.stop_strings and self._stop_at(self.text_before_stop(tokens)) is not None:
            return "stop"
        return "length" if len(tokens) >= self.max_new_tokens else None

    def text(self, tokens: Sequence[int]) -> str:
        """The answer that `tokens` say, cut before the first end-of-sequence or stop string."""
        text = self.text_before_stop(tokens)
        return text[: self._stop_at(text)]

    def text_before_stop(self, tokens: Sequence[int]) -> str:
        """The text of the tokens before the first end-of-sequence, stop strings not yet cut off."""
        if self.detokenizer is None:
            raise GenerationError("Text needs a detokenizer, this stop rule has none; pass one.")
        ends = (index for index, token in enumerate(tokens) if token in self.eos_token_ids)
        return self.detokenizer.text(tokens[: next(ends, len(tokens))])

    def held_back(self, text: str) -> int:
        """Length of the longest end of `text` that could still grow into a stop string."""
        longest = max((len(stop) for stop in self.stop_strings), default=1) - 1
        return next(
            (
                length
                for length in range(min(longest, len(text)), 0, -1)
                if any(stop.startswith(text[-length:]) for stop in self.stop_strings)
            ),
            0,
        )

    def _stop_at(self, text: str) -> int | None:
        found = [index for stop in self.stop_strings if (index := text.find(stop)) >= 0]
        return min(found, default=None)


class TextStream:
    """Turns a growing list of tokens into pieces of text that add up to `StopRule.text`.

    A piece is shown once no later token can change it: bytes that do not yet make a character and a possible
    beginning of a stop string are held back. The whole answer is decoded each time, since decoders treat the
    first word of a sequence differently from later ones (cost: microseconds for hundreds of tokens).
    """

    def __init__(self, rule: StopRule) -> None:
        if rule.detokenizer is None:
            raise GenerationError("A stream of text needs a detokenizer, its stop rule has none; pass one.")
        self._rule = rule
        self._decoder = rule.detokenizer
        self._tokens: list[int] = []
        self._shown = ""

    @property
    def num_tokens(self) -> int:
        """Pushed so far."""
        return len(self._tokens)

    def copy(self) -> TextStream:
        """A stream that goes on from here by itself."""
        other = TextStream(self._rule)
        other._tokens, other._shown = list(self._tokens), self._shown
        return other

    def push(self, tokens: Sequence[int]) -> str:
        """Append committed `tokens`; the text that is new and settled, often empty."""
        self._tokens += tokens
        if self._rule.finished(self._tokens) is not None:
            return self._show(self._rule.text(self._tokens))
        text = self._decoder.settled_text(self._tokens)
        return self._show(text[: len(text) - self._rule.held_back(text)])

    def finish(self) -> str:
        """What was held back, for an answer that ends before its stop rule says so."""
        return self._show(self._rule.text(self._tokens))

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):  # a decoder revised itself: what was shown stays
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new
