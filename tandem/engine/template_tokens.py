"""Tokens of a template's text with other texts at its marks: special tokens of the template count, others are text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Encoding, Tokenizer


class Gap(NamedTuple):
    """A part of a row around one mark, tokenised as far as it does not depend on the text there."""

    lead: list[int]  # up to the last special token before the mark
    head: str  # text from there to the mark
    tail: str  # text from the mark to the next special token
    trail: list[int]
    tokenizer: Tokenizer  # for head, text and tail as one
    text: str  # the whole part, with the mark

    @property
    def num_fixed(self) -> int:
        """Tokens outside of head, text and tail."""
        return len(self.lead) + len(self.trail)

    def encode(self, text: str) -> Encoding:
        """Of head, text and tail; its offsets count from the beginning of head."""
        return self.tokenizer.encode(self.head + text + self.tail, add_special_tokens=False)

    def tokens(self, text: str) -> list[int]:
        """The whole part."""
        return [*self.lead, *self.encode(text).ids, *self.trail]


class TemplateTokenizer:
    """Tokenises as a tokenizer does a whole text, and puts other texts in without any special token of theirs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """tokenizer: from now on it takes special tokens for text."""
        tokenizer.encode_special_tokens = True
        added = tokenizer.get_added_tokens_decoder()
        self._special: dict[str, tuple[int, AddedToken]] = {
            token.content: (index, token) for index, token in added.items() if token.special
        }
        names = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._at_start = tokenizer
        self._after_special = _change_prefix(tokenizer, is_within_text=False)
        self._within_text = _change_prefix(tokenizer, is_within_text=True)

    def first_special(self, text: str) -> int | None:
        """The id of the special token with which a text begins after white space; None if it begins otherwise."""
        match = self._pattern.match(text.lstrip())
        return self._special[match.group()][0] if match else None

    def encode_whole(self, text: str, fill: Mapping[str, str]) -> list[int]:
        """Tokens of a template's filled text, as the tokenizer itself takes it."""
        self._at_start.encode_special_tokens = False
        ids = self._encode_piece(text, self._at_start, fill)
        self._at_start.encode_special_tokens = True
        return ids

    def encode(self, text: str, fill: Mapping[str, str], *, is_within_text: bool = False) -> list[int]:
        """Tokens of a template's text. fill: mark -> text. is_within_text: it continues a text, without a gap."""
        ids: list[int] = []
        for piece in self._split(text, is_within_text):
            ids += [piece] if isinstance(piece, int) else self._encode_piece(*piece, fill)
        return ids

    def gap(self, text: str, mark: str) -> Gap:
        """The same for a text with one mark, which is filled later."""
        lead: list[int] = []
        gap: Gap | None = None
        for piece in self._split(text, False):
            if not isinstance(piece, int) and mark in piece[0]:
                head, _, tail = piece[0].partition(mark)
                gap = Gap(lead, head, tail, [], piece[1], text)
            else:
                target = lead if gap is None else gap.trail
                target += [piece] if isinstance(piece, int) else self._encode_piece(*piece, {})
        assert gap is not None  # the mark is in the text
        return gap

    def _encode_piece(self, text: str, tokenizer: Tokenizer, fill: Mapping[str, str]) -> list[int]:
        filled = re.sub("|".join(map(re.escape, fill)) or r"(?!)", lambda match: fill[match.group()], text)
        return list(tokenizer.encode(filled, add_special_tokens=False).ids)

    def _split(self, text: str, is_within_text: bool) -> list[int | tuple[str, Tokenizer]]:
        """Special tokens as their ids, and the texts between them with the tokenizer for each."""
        pieces: list[int | tuple[str, Tokenizer]] = []
        tokenizer = self._within_text if is_within_text else self._at_start
        start = 0
        strips = False  # the special token before swallows white space
        for match in self._pattern.finditer(text):
            index, token = self._special[match.group()]
            between = text[start : match.start()]
            between = between.lstrip() if strips else between
            between = between.rstrip() if token.lstrip else between
            pieces += [(between, tokenizer)] if between else []
            pieces.append(index)
            tokenizer, start, strips = self._after_special, match.end(), token.rstrip
        rest = text[start:].lstrip() if strips else text[start:]
        return [*pieces, (rest, tokenizer)] if rest else pieces


def _change_prefix(tokenizer: Tokenizer, *, is_within_text: bool) -> Tokenizer:
    """The tokenizer for a text that does not begin a sequence: without the space that it puts before the first word.

    is_within_text: nor before the first word of each text between special tokens.
    """
    state = json.loads(tokenizer.to_str())
    parts = {name: state[name] for name in ("normalizer", "pre_tokenizer")}
    changed = {name: _without_prefix(part, is_within_text) for name, part in parts.items()}
    if changed == parts:
        return tokenizer
    copy: Tokenizer = Tokenizer.from_str(json.dumps({**state, **changed}))
    copy.encode_special_tokens = True
    return copy


def _without_prefix(part: Any, is_within_text: bool) -> Any:
    """A normaliser or pre-tokenizer, as JSON."""
    if isinstance(part, list):
        kept = [each for each in part if not (is_within_text and each.get("type") == "Prepend")]
        return [_without_prefix(each, is_within_text) for each in kept]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return None if is_within_text else part
    changed = {key: _without_prefix(value, is_within_text) for key, value in part.items()}
    if part.get("prepend_scheme") == "first" or (is_within_text and "prepend_scheme" in part):
        changed["prepend_scheme"] = "never"
    if is_within_text and "add_prefix_space" in part:
        changed["add_prefix_space"] = False
    return changed
