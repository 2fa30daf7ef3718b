# ruff: noqa: RUF001 (DeepSeek has such characters in its tokens)
"""Tokenizers inside GGUF files: as transformers makes them where it can, and as llama.cpp has them elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.places import info_of, load_tokenizer
from tandem.engine.tokenizer import Vocabulary
from tandem.errors import GenerationError
from tandem.plugins.gguf import tokenizer as gguf_tokenizer
from tandem.plugins.torch.conversion import read_tokenizer
from tests.tiny_gguf import BYTE, CONTROL, NORMAL, USER, write_tokenizer

pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")

PIECES = {
    **{f"<0x{byte:02X}>": BYTE for byte in range(256)},
    **dict.fromkeys(("▁", "a", "b", "ab", "▁a", "▁ab", "aa", "▁▁", "  ", "<think>"), NORMAL),
}
LLAMA = dict.fromkeys(("<unk>", "<s>", "</s>"), CONTROL) | PIECES
GEMMA = dict.fromkeys(("<unk>", "<bos>", "<eos>", "<pad>", "<mask>"), CONTROL) | PIECES
LETTERS = dict.fromkeys(("a", "b", "ab", "Ġ", "Ġa", "Ċ", "ĊĊ", "1", "2", "12", "ç¼", "日"), NORMAL)
BYTE_LEVEL = LETTERS | {"<|endoftext|>": CONTROL, "<｜begin▁of｜>": CONTROL, "<think>": USER}
TEXTS = ("ab aab\n\n12 日本", "a<think>b</s>", "aab  b", "<|endoftext|>ab<｜begin▁of｜>", "")


@pytest.mark.parametrize(
    ("kind", "tokens", "more"),
    [
        (
            "gpt2",
            LETTERS | {"<|endoftext|>": CONTROL, "<think>": USER},
            {"tokenizer_pre": "qwen2", "eos_token_id": 12},
        ),
        (
            "gpt2",
            LETTERS | {"<|endoftext|>": CONTROL},
            {"tokenizer_pre": "smollm", "bos_token_id": 12, "add_bos_token": True},
        ),
        ("llama", LLAMA, {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "architecture": "phi3"}),
        (
            "llama",
            LLAMA,
            {"bos_token_id": 1, "unk_token_id": 0, "add_bos_token": False, "architecture": "phi3"},
        ),
        (
            "llama",
            GEMMA,
            {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "architecture": "gemma2"},
        ),
    ],
)
def test_it_is_what_transformers_makes_of_the_file(
    tmp_path: Path, kind: str, tokens: dict[str, int], more: dict[str, Any]
) -> None:
    file = write_tokenizer(tmp_path / "x.gguf", kind, tokens, chat_template="{{ messages }}", **more)
    tokenizer, info = load_tokenizer(str(file))
    wrapper = read_tokenizer(file)
    theirs = info_of(wrapper)
    named = {
        name: token for name, token in theirs.special_tokens.items() if name != "mask_token"
    }  # of Gemma's class
    assert (info.special_tokens, info.all_special_ids) == (named, theirs.all_special_ids[: len(named)])
    assert (info.eos_token_id, info.chat_template) == (theirs.eos_token_id, "{{ messages }}")
    assert info.added_tokens == theirs.added_tokens
    expected, found = (json.loads(each.to_str()) for each in (wrapper.backend_tokenizer, tokenizer))
    assert {name: part for name, part in found.items() if name != "post_processor"} == {
        name: part for name, part in expected.items() if name != "post_processor"
    }
    assert Vocabulary.of(tokenizer).prefixes[0] == Vocabulary.of(wrapper.backend_tokenizer).prefixes[0]
    for text in TEXTS:
        assert tokenizer.encode(text).ids == wrapper.backend_tokenizer.encode(text).ids, text


def test_tokens_that_texts_are_searched_for_keep_their_spelling_and_ids(tmp_path: Path) -> None:
    """transformers spells DeepSeek's special tokens in the byte alphabet, and gives what they were ids beyond the
    model's; so it does with <|endoftext|> where a family has none."""
    file = write_tokenizer(
        tmp_path / "x.gguf", "gpt2", BYTE_LEVEL, tokenizer_pre="gpt-2", bos_token_id=13, add_bos_token=True
    )
    tokenizer, info = load_tokenizer(str(file))
    assert (info.special_tokens, info.all_special_ids) == ({"bos_token": "<｜begin▁of｜>"}, (13,))
    assert tokenizer.get_vocab_size() == len(BYTE_LEVEL)
    assert tokenizer.encode("a<｜begin▁of｜>b<think>").tokens == [
        "<｜begin▁of｜>",
        "a",
        "<｜begin▁of｜>",
        "b",
        "<think>",
    ]
    assert tokenizer.decode(tokenizer.encode("日ab").ids) == "ab", (
        "a token with a letter of its own stands for bytes"
    )
    assert tokenizer.token_to_id("æĹ¥") == 11


@pytest.mark.parametrize(
    ("kind", "tokens", "more", "reason"),
    [
        ("bert", LLAMA, {}, "is of the kind 'bert', which Tandem does not know; use another file, or"),
        (
            "llama",
            LLAMA,
            {"bos_token_id": 999},
            "cannot be read: its bos_token is 999, and it has 269 tokens; use another file, or",
        ),
        (
            "gpt2",
            {"a": NORMAL},
            {},
            "cannot be read: Error while initializing BPE: Token `b` out of vocabulary; use another file, or",
        ),
    ],
)
def test_one_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, kind: str, tokens: dict[str, int], more: dict[str, Any], reason: str
) -> None:
    file = write_tokenizer(tmp_path / "x.gguf", kind, tokens, **more)
    with pytest.raises(GenerationError) as raised:
        gguf_tokenizer.load(file)
    assert str(raised.value).startswith(f"The tokenizer of {str(file)!r} ")
    assert reason in str(raised.value)
