"""The tokenizer inside a GGUF file, made with the package `tokenizers` alone.

Where files leave something to their readers, it is as llama.cpp has it (`llama-vocab.cpp`), and as the tokenizer.json
that the file was made of: two parties may have one model in either form.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from tandem.engine.template import any_of
from tandem.engine.tokenizer import TokenizerInfo, byte_level_alphabet
from tandem.errors import GenerationError, first_line
from tandem.plugins.gguf.header import Header, check

_log = logging.getLogger("tandem")
_PREFIX = "tokenizer.ggml."
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Special tokens, as templates know them -> as files name their ids."""
_CONTROL, _USER_DEFINED = _WHOLE = 3, 4  # kinds of tokens that texts are searched for as a whole
_WHOLE_WORDS = frozenset(
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
    )
)
"""Ways to split texts with which a word that is a token needs no merges, and a text begins with a special token."""
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3n")
_SPACE = "\u2581"
_LONGEST_TOKEN = 4096
"""In characters: what its merges cost grows with the square, and real ones have some hundred at most."""

_GPT2 = "gpt-2"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    rf"{_CONTRACTION}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = _GPT4O.replace(f"{_CONTRACTION}?", "").replace("{1,3}", "")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES,
)
_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_KINDS = (
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert",
        (_GPT2,),
    ),
    ("jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe", (_GPT2,)),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", (r"\p{N}", _GPT2)),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", (_LLAMA3,)),
    ("dbrx smaug-bpe glm4 chatglm-bpe", (_LLAMA3,)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan", (_QWEN2,)),
    ("qwen35", (_QWEN35,)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", (_GPT4O,)),
    ("tekken", (_TEKKEN,)),
    ("deepseek-v3 hunyuan-dense joyai-llm", _DEEPSEEK3),
    ("deepseek-coder", _CODER),
)
SPLITS = {name: patterns for names, patterns in _KINDS for name in names.split()}
"""How texts are split before merges apply, by the names that files have for it: patterns one after the other, each of
which isolates what it finds; "gpt-2" stands for GPT-2's. As llama.cpp has them (`llama-vocab.cpp`)."""


def load(file: Path) -> tuple[Tokenizer, TokenizerInfo]:
    """The tokenizer of a file, and what the file says of it. Raises GenerationError."""
    header = check(file)
    try:
        values = _read(header)
        kind = str(values.get("model", "none"))
        if kind not in ("gpt2", "llama", "gemma4"):
            raise GenerationError(
                f"The tokenizer of {str(file)!r} is of the kind {kind!r:.60}, which Tandem does not know; use another "
                "file, or the model's folder."
            )
        tokens, named = values["tokens"], _find_named(values)
        if kind == "gpt2":
            tokenizer = _byte_level(values)
            split_texts(file, tokenizer)
        elif kind == "gemma4" or header.architecture in _GEMMA:
            tokenizer = _gemma(values)
        else:
            tokenizer = _sentence_pieces(values)
        _add_tokens(tokenizer, values, set(named.values()))
        special = {name: tokens[index] for name, index in named.items()}
        begins = values.get("add_bos_token", kind != "gpt2" or values.get("pre") in _WHOLE_WORDS)
        if begins and "bos_token" in named:
            begin = (special["bos_token"], named["bos_token"])
            tokenizer.post_processor = processors.TemplateProcessing(f"{begin[0]} $A", special_tokens=[begin])
    except GenerationError:
        raise
    except Exception as error:  # the package tokenizers raises bare Exception
        if isinstance(error, KeyError):
            error = ValueError(f"it says nothing of {error}")
        raise GenerationError(
            f"The tokenizer of {str(file)!r} cannot be read: {first_line(error):.200}; use another "
            "file, or the model's folder."
        ) from None
    return tokenizer, TokenizerInfo.of(
        tokenizer, special, eos_token_id=named.get("eos_token"), chat_template=values.get("chat_template")
    )


def split_texts(file: Path, tokenizer: Tokenizer) -> None:
    """Let a file's tokenizer, as transformers made it, split texts as the file says; warns where that is unknown."""
    name = check(file).split
    if name in SPLITS:
        tokenizer.pre_tokenizer = make_pre_tokenizer(name)
    elif name is not None:
        naming = (
            f"names the pre-tokenizer {name!r:.60}, which Tandem does not know"
            if name
            else "names no pre-tokenizer"
        )
        _log.warning("%s %s: texts are split as GPT-2's are, and answers may be worse.", file, naming)


def make_pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a name in SPLITS."""
    patterns = SPLITS[name]
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns if pattern != _GPT2]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=patterns[-1] == _GPT2)
    return pre_tokenizers.Sequence([*steps, spelled])


def _read(header: Header) -> dict[str, Any]:
    """The header's values that concern the tokenizer, arrays as lists. Raises ValueError."""
    values = {
        key.removeprefix(_PREFIX).removeprefix("tokenizer."): value for key, value in header.values.items()
    }
    for name in ("tokens", "merges"):
        if name in values:
            values[name] = [text.decode("utf-8", "replace") for text in header.texts(_PREFIX + name)]
    for name in ("scores", "token_type"):
        if name in values:
            values[name] = header.numbers(_PREFIX + name)
    if (longest := max(map(len, values["tokens"]), default=0)) > _LONGEST_TOKEN:
        raise ValueError(f"it has a token of {longest:,} characters")
    return values


def _find_named(values: Mapping[str, Any]) -> dict[str, int]:
    """Special tokens, as templates know them -> ids. Raises ValueError."""
    named = {name: values[f"{key}_token_id"] for name, key in _NAMED.items() if f"{key}_token_id" in values}
    for name, index in named.items():
        if not 0 <= index < len(values["tokens"]):
            raise ValueError(f"its {name} is {index}, and it has {len(values['tokens']):,} tokens")
    return named


def _byte_level(values: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer like GPT-2's. Whole tokens are spelled as they are, all others in its alphabet."""
    alphabet, tokens = byte_level_alphabet(), values["tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if foreign := set("".join(tokens)) - alphabet.keys():
        letters = {byte: letter for letter, byte in alphabet.items()}
        kinds = values.get("token_type") or [1] * len(tokens)
        search = any_of(foreign).search
        for token in [token for token in vocabulary if search(token)]:
            if kinds[vocabulary[token]] not in _WHOLE:
                vocabulary["".join(letters[byte] for byte in token.encode())] = vocabulary.pop(token)
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            _listed_merges(values),
            continuing_subword_prefix="",
            end_of_word_suffix="",
            ignore_merges=values.get("pre") in _WHOLE_WORDS,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(values: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer like that of Llama 2 or Phi-3: a space comes before a text, unless the file says otherwise."""
    scores = dict(zip(values["tokens"], values["scores"], strict=False))
    tokenizer = _pieces(values["tokens"], _find_merges(scores), None)
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = spaces
    if values.get("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*_PIECES_TO_TEXT, decoders.Strip(content=" ", left=1)])
    return tokenizer


def _gemma(values: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer like Gemma's: no space before a text; merges that are not listed follow the order of the tokens."""
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in values["tokens"]]
    order = {token: -float(index) for index, token in enumerate(tokens)}
    unknown = tokens[values["unknown_token_id"]] if "unknown_token_id" in values else "<unk>"
    tokenizer = _pieces(
        tokens, _listed_merges(values) if "merges" in values else _find_merges(order), unknown
    )
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


_PIECES_TO_TEXT = (decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse())


def _pieces(tokens: Sequence[str], merges: list[tuple[str, str]], unknown: str | None) -> Tokenizer:
    """Pieces of text, and bytes for what they do not spell."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([*_PIECES_TO_TEXT])
    return tokenizer


def _listed_merges(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(first, second) for first, _, second in (merge.partition(" ") for merge in values["merges"])]


def _find_merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, those of the highest score first, of equal ones those with the longest
    first and then second part. scores: of each token, in their order."""
    merges = [
        (score, end, len(token) - end, token)
        for token, score in scores.items()
        for end in range(1, len(token))
        if token[:end] in scores and token[end:] in scores
    ]
    merges.sort(key=itemgetter(0, 1, 2), reverse=True)
    return [(token[:end], token[end:]) for _, end, _, token in merges]


def _add_tokens(tokenizer: Tokenizer, values: Mapping[str, Any], named: set[int]) -> None:
    """Have texts searched for the tokens of a file that are whole, the named ones among them as special ones."""
    kinds = values.get("token_type") or ()
    is_special = {index: kind == _CONTROL for index, kind in enumerate(kinds) if kind in _WHOLE}
    is_special |= dict.fromkeys(named, True)
    tokenizer.add_tokens(
        [
            AddedToken(tokenizer.id_to_token(index), normalized=False, special=special)
            for index, special in sorted(is_special.items())
        ]
    )
