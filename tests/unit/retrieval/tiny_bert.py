"""BERT of two layers with random weights, saved as people's embedders and scoring models are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz.,:?"
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def save_bert(folder: Path, kind: str, max_length: int, *, words: str = "", **config: Any) -> Path:
    """A model and a word-piece tokenizer that knows the given words and all letters; gives the folder.

    kind: its class in `transformers`.
    """
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [*SPECIAL.values(), *words.split(), *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, **SPECIAL
    )
    fast.save_pretrained(folder)
    transformers.set_seed(0)
    sizes = transformers.BertConfig(vocab_size=len(pieces), initializer_range=0.3, **SIZES, **config)
    getattr(transformers, kind)(sizes).save_pretrained(folder)
    return folder
