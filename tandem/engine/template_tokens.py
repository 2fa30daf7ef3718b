"""Tokens of a template's text with other texts at its marks: the template's markers count, those of others are text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from tokenizers import AddedToken, Encoding, Tokenizer

Place = Literal["start", "marker", "text"]
"""Where a text begins: at the start of a row, after a marker, or within a text, which it continues without a gap."""


class Gap(NamedTuple):
    """A part of a row around one mark, tokenised as far as it does not depend on the text there."""

    lead: list[int]  # up to the last marker before the mark
    head: str  # text from there to the mark
    tail: str  # text from the mark to the next marker
    trail: list[int]
    tokenizer: Tokenizer  # for head, text and tail as one

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
    """Tokenises as a tokenizer does a whole text, and puts other texts in without any marker of theirs.

    Markers are the tokenizer's special tokens, and every other added token that is not white space and that the
    template writes: many models have turn markers that are not called special.
    """

    def __init__(self, tokenizer: Tokenizer, template: str = "") -> None:
        """tokenizer: from now on it takes special tokens for text. template: all that the template writes."""
        tokenizer.encode_special_tokens = True
        self._whole = tokenizer
        added = {
            token.content: (index, token) for index, token in tokenizer.get_added_tokens_decoder().items()
        }
        written = set(_any_of(name for name in added if not name.isspace()).findall(template))
        self._markers = {
            name: (index, token)
            for name, (index, token) in added.items()
            if token.special or (name in written and not name.isspace())
        }
        self._pattern = _any_of(self._markers)
        self._at_start = _hide(tokenizer, self._markers)
        self._after_special = _change_prefix(self._at_start, is_within_text=False)
        self._within_text = _change_prefix(self._at_start, is_within_text=True)

    def markers(self, text: str) -> tuple[int, ...]:
        """The ids of the markers in a template's text."""
        return tuple(self._markers[name][0] for name in self._pattern.findall(text))

    def encode_whole(self, text: str, fill: Mapping[str, str]) -> list[int]:
        """Tokens of a template's filled text, as the tokenizer itself takes it."""
        self._whole.encode_special_tokens = False
        ids = self._encode_piece(text, self._whole, fill)
        self._whole.encode_special_tokens = True
        return ids

    def encode(self, text: str, fill: Mapping[str, str], place: Place = "start") -> list[int]:
        """Tokens of a template's text. fill: mark -> text. place: where the text begins."""
        ids: list[int] = []
        for piece in self._split(text, place):
            ids += [piece] if isinstance(piece, int) else self._encode_piece(*piece, fill)
        return ids

    def gap(self, text: str, mark: str, fill: Mapping[str, str]) -> Gap:
        """The same for a text with one more mark, which is filled later."""
        lead: list[int] = []
        gap: Gap | None = None
        for piece in self._split(text, "start"):
            if not isinstance(piece, int) and mark in piece[0]:
                head, tail = (_fill(part, fill) for part in piece[0].split(mark))
                gap = Gap(lead, head, tail, [], piece[1])
            else:
                target = lead if gap is None else gap.trail
                target += [piece] if isinstance(piece, int) else self._encode_piece(*piece, fill)
        assert gap is not None  # the mark is in the text
        return gap

    def _encode_piece(self, text: str, tokenizer: Tokenizer, fill: Mapping[str, str]) -> list[int]:
        return list(tokenizer.encode(_fill(text, fill), add_special_tokens=False).ids)

    def _split(self, text: str, place: Place) -> list[int | tuple[str, Tokenizer]]:
        """Markers as their ids, and the texts between them with the tokenizer for each."""
        pieces: list[int | tuple[str, Tokenizer]] = []
        tokenizer = {"start": self._at_start, "marker": self._after_special, "text": self._within_text}[place]
        start = 0
        strips = False  # the marker before swallows white space
        for match in self._pattern.finditer(text):
            index, token = self._markers[match.group()]
            between = text[start : match.start()]
            between = between.lstrip() if strips else between
            between = between.rstrip() if token.lstrip else between
            pieces += [(between, tokenizer)] if between else []
            pieces.append(index)
            tokenizer, start, strips = self._after_special, match.end(), token.rstrip
        rest = text[start:].lstrip() if strips else text[start:]
        return [*pieces, (rest, tokenizer)] if rest else pieces


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of some texts; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _fill(text: str, fill: Mapping[str, str]) -> str:
    return _any_of(fill).sub(lambda match: fill[match.group()], text)


def _hide(tokenizer: Tokenizer, markers: Mapping[str, tuple[int, AddedToken]]) -> Tokenizer:
    """The tokenizer for texts that others wrote: it makes none of these tokens.

    BPE makes tokens by its merges, which never lead to an added token. Other models know whole pieces, among them the
    markers, which therefore get names that no text holds.
    """
    state = json.loads(tokenizer.to_str())
    is_bpe = state["model"]["type"] == "BPE"
    if is_bpe and all(token.special for _, token in markers.values()):
        return tokenizer
    if is_bpe:
        for token in state["added_tokens"]:
            token["special"] |= token["content"] in markers
    else:
        state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in markers]
        pieces = state["model"]["vocab"]
        if isinstance(pieces, dict):
            kept = {name: index for name, index in pieces.items() if name not in markers}
            hidden = {f"\ufdd4{index}": index for name, index in pieces.items() if name in markers}
            state["model"]["vocab"] = kept | hidden
        else:
            unknown = state["model"].get("unk_id")
            for index, (name, score) in enumerate(pieces):
                if name in markers and index != unknown:
                    pieces[index] = [f"\ufdd4{index}", score]
    copy: Tokenizer = Tokenizer.from_str(json.dumps(state))
    copy.encode_special_tokens = True
    return copy


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
