"""Tokenizers of the kinds that models have, trained on small texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tandem.corpora import BUNDLED

FEW_TEXTS = [
    "Mira likes puzzle games, so try Vantelu Cor.",
    "The best rated puzzle game is Vantelu Cor.",
    "Question Answer",
]


@cache
def many_texts() -> list[str]:
    return [path.read_text("utf-8") for path in sorted(BUNDLED.rglob("*.md"))[:200]]


def byte_level(
    *special: str,
    texts: Sequence[str] = (),
    vocab_size: int = 600,
    pattern: str | None = None,
    digits: bool = False,
    plain: tuple[str, ...] = (),
) -> Tokenizer:
    """BPE of bytes, as Qwen2, OPT and Phi have it: GPT-2's pattern, or another. plain: added tokens that are not
    special."""
    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts or [*many_texts(), *["\n\n"] * 1000], trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return tokenizer


def sentence_piece(
    *special: str,
    texts: Sequence[str] = (),
    vocab_size: int = 400,
    prefix: str = "Prepend",
    plain: tuple[str, ...] = (),
    bos: str = "<s>",
    strips: bool = False,
) -> Tokenizer:
    """BPE of pieces with byte fallback, as Llama and Mistral have it, which puts bos before a text.

    prefix: the form in which a space comes before the first word.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(
        texts or many_texts(), trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False)
    )
    pieces = sorted(trained.get_vocab(), key=lambda piece: trained.get_vocab()[piece])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", bos, "</s>", *byte_tokens, *pieces])}
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    if prefix == "Prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False, rstrip=strips and text != bos)
            for text in ("<unk>", bos, "</s>", *special)
        ]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return with_bos(tokenizer, bos)


def unigram() -> Tokenizer:
    """As T5 has it: the model itself knows its special tokens, and ends texts with one of them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "</s>", "<unk>", "<extra_id_0>"],
        unk_token="<unk>",
        initial_alphabet=list("<>|_/[]?abcdefghijklmnopqrstuvwxyz0123456789"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(many_texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    """The same one, which puts bos before a text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer
