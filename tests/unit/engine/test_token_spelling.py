"""What a token spells by itself, in the vocabularies of two families."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tandem.engine.tokenizer import Speller


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.add_tokens(["né"])
    return tokenizer


def pieces() -> Tokenizer:
    vocabulary = {"<unk>": 0, "\u2581tea": 1, "<0xE2>": 2, "s": 3}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    return tokenizer


def test_bytes_of_all_tokens_are_the_text() -> None:
    tokenizer, text = byte_level(), " tea \u2615 \xad\n\x00~"
    spellings = [Speller(tokenizer).spell(token) for token in tokenizer.encode(text).ids]
    assert b"".join(bytes(spelling.utf8 or ()) for spelling in spellings).decode() == text
    assert spellings[0].text == " "
    assert spellings[5] == ("\\xe2", (0xE2,)), "a part of a character is named by its byte"


def test_special_tokens_have_a_name_and_no_bytes() -> None:
    tokenizer = byte_level()
    assert Speller(tokenizer).spell(tokenizer.token_to_id("<end>")) == ("<end>", None)
    assert Speller(tokenizer).spell(tokenizer.token_to_id("né")) == ("né", tuple("né".encode()))
    assert Speller(tokenizer).spell(100_000) == ("", None)


@pytest.mark.parametrize(
    ("token", "text", "utf8"), [(1, " tea", b" tea"), (2, "\\xe2", b"\xe2"), (3, "s", b"s")]
)
def test_pieces_of_text(token: int, text: str, utf8: bytes) -> None:
    assert Speller(pieces()).spell(token) == (text, tuple(utf8))
