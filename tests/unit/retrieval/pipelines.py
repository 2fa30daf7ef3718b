"""Embedding pipelines for tests: small ones made from configurations, and how two ways to run one are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tandem.retrieval.embedding import Embedder, LibraryPipeline

TEXTS = (
    "",
    " ",
    "a",
    "Why?\n",
    "Zürich, 42 €; naïve \uff21\uff22 \ufb01",
    "日本語のテキスト",
    "😀" * 40,
    "\x00\u200b\ufffd\u202e[SEP] [PAD] </s>",
    "https://example.org/photo.png",
    "/tmp/film.mp4",
    "x" * 1000,
    "start " + "word " * 400 + "end",
    "word",
    *(f"text number {n} " * (n % 13) for n in range(60)),
)
"""Empty, long, short, strange and equally long ones, in more than one batch."""
_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "text", "number", "word", "start", "end", "why", "?")
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
_DISTILBERT: dict[str, Any] = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
_CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _SIZES),
    "distilbert": ("DistilBert", _DISTILBERT | {"max_position_embeddings": 80, "pad_token_id": 0}),
    "mpnet": ("MPNet", _SIZES),
    "roberta": ("Roberta", _SIZES),
    "xlm-roberta": ("XLMRoberta", _SIZES),
}
"""Class and sizes of a family's smallest sensible model."""


def make_folder(
    folder: Path,
    *,
    family: str = "bert",
    mode: str | tuple[str, ...] = "mean",
    is_normalized: bool = True,
    padding_side: str = "right",
    dtype: torch.dtype = torch.float32,
    max_tokens: int | None = 48,
) -> Path:
    """A pipeline with random weights, as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(7)
    name, sizes = _CONFIGURATIONS[family]
    vocabulary = _vocabulary()
    config = getattr(transformers, f"{name}Config")(vocab_size=len(vocabulary), **sizes)
    getattr(transformers, f"{name}Model")(config).to(dtype).save_pretrained(folder / "encoder")
    _tokenizer(vocabulary, family, padding_side).save_pretrained(folder / "encoder")
    modules: list[torch.nn.Module] = [Transformer(str(folder / "encoder"), max_seq_length=max_tokens)]
    modules.append(Pooling(32, pooling_mode=mode))  # type: ignore[arg-type]
    modules += [Normalize()] if is_normalized else []
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "pipeline"))
    return folder / "pipeline"


def _vocabulary() -> dict[str, int]:
    tokens = [*_WORDS, *_CHARACTERS, *(f"##{character}" for character in _CHARACTERS)]
    return {token: number for number, token in enumerate(tokens)}


def _tokenizer(vocabulary: dict[str, int], family: str, padding_side: str) -> Any:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=inputs if family == "bert" else inputs[::2],
        padding_side=padding_side,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def edit_json(path: Path, **values: Any) -> None:
    """Sets keys of a file of settings; None removes one."""
    settings = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))


def by_library(folder: Path) -> Embedder:
    """The embedder of a folder, run by sentence-transformers whatever its pipeline."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return Embedder(str(folder), LibraryPipeline(model))


def differences(one: Embedder, other: Embedder, texts: Sequence[str] = TEXTS) -> list[str]:
    """Where two embedders give other bits: texts together and each alone, with beginning or end kept."""
    different = []
    for keep_end in (False, True):
        side = "end" if keep_end else "beginning"
        if not np.array_equal(one.embed(texts, keep_end=keep_end), other.embed(texts, keep_end=keep_end)):
            different.append(f"together, {side}")
        different += [
            f"{text!r:.40}, {side}"
            for text in texts
            if not np.array_equal(
                one.embed([text], keep_end=keep_end), other.embed([text], keep_end=keep_end)
            )
        ]
    return different
