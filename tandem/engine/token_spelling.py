"""What one token spells by itself, of the kinds of vocabulary that fast tokenizers have."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tokenizers import Tokenizer

BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
"""A byte, in a vocabulary of pieces of text with byte fallback."""
_WORD_BEGIN = "\u2581"  # a space, in a vocabulary of pieces of text


class Spelling(NamedTuple):
    """A token as people and programs read it."""

    text: str  # bytes that are no whole character as \xe2; of a special token its name
    utf8: tuple[int, ...] | None  # None: a special token, which spells nothing


class Speller:
    """Spells the tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self._special = frozenset(index for index, token in added.items() if token.special)
        is_byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.to_str())["decoder"])
        self._bytes = _byte_level_alphabet() if is_byte_level else None

    def spell(self, token: int) -> Spelling:
        """Name and bytes; those of all tokens of an answer are its text."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._special:
            return Spelling(piece or "", None)
        raw = self._encode(token, piece)
        return Spelling(raw.decode(errors="backslashreplace"), tuple(raw))

    def _encode(self, token: int, piece: str) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        if self._bytes is not None and self._bytes.keys() >= set(piece):
            return bytes(self._bytes[character] for character in piece)
        if match := BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(match.group(1))
        return piece.replace(_WORD_BEGIN, " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte: of GPT-2, which shows printable bytes as themselves and the others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}
