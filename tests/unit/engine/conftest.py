"""Tiny tokenizers and small random models, saved once per session as model directories."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tandem.engine.engine import Engine
from tests.tiny_gguf import write_gguf
from tests.unit.engine.builders import FEW_TEXTS, byte_level, sentence_piece, with_bos

SMALL = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 160}
ROPE = {**SMALL, "intermediate_size": 64, "initializer_range": 0.2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {**ROPE, "num_key_value_heads": 2}),
    "qwen2-sliding": (
        "qwen2",
        {
            **ROPE,
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
        },
    ),
    "llama": ("llama", {**ROPE, "num_key_value_heads": 4}),
    "llama-grouped": ("llama", {**ROPE, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "opt": ("opt", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.2}),
    "phi": ("phi", ROPE),
    "gpt-neox": ("gpt_neox", ROPE),
    "phi3-longrope": (
        "phi3",
        {
            **ROPE,
            "pad_token_id": 0,
            "max_position_embeddings": 320,
            "original_max_position_embeddings": 96,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 4,
                "long_factor": [8.0] * 4,
            },
        },
    ),
}


def few_bytes() -> Tokenizer:
    return with_bos(byte_level("<bos>", "<eos>", texts=FEW_TEXTS, vocab_size=300), "<bos>")


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """Both kinds, by name."""
    return {
        "byte_level": few_bytes(),
        "metaspace": sentence_piece(texts=FEW_TEXTS, vocab_size=140, bos="<bos>"),
    }


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """save_model(family, vocab_size=320, tokenizer=True) -> directory. Seeded random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    made: dict[Any, Path] = {}

    def save(family: str, vocab_size: int = 320, tokenizer: bool = True) -> Path:
        key = (family, vocab_size, tokenizer)
        if key not in made:
            name, sizes = FAMILIES[family]
            directory = tmp_path_factory.mktemp(family)
            torch.manual_seed(7)
            config = AutoConfig.for_model(name, vocab_size=vocab_size, **sizes)
            AutoModelForCausalLM.from_config(config).save_pretrained(directory)
            if tokenizer:
                PreTrainedTokenizerFast(
                    tokenizer_object=few_bytes(), bos_token="<bos>", eos_token="<eos>"
                ).save_pretrained(directory)
            made[key] = directory
        return made[key]

    return save


@pytest.fixture
def copied(save_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A Llama directory of the test's own, to be damaged."""
    return Path(shutil.copytree(save_model("llama"), tmp_path / "model"))


@pytest.fixture(scope="session")
def load_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Engine]:
    """load_tiny("llama Q4_0 lfm2", seed=0, **options) -> a new engine of a small GGUF file, quantised so, of that
    architecture (default: llama)."""
    folder = tmp_path_factory.mktemp("gguf")

    def load(how: str, *, seed: int = 0, **options: Any) -> Engine:
        name, kind, architecture = [*how.split(), "llama"][:3]
        pytest.importorskip("accelerate", reason="the package accelerate (extra torch) is not installed")
        pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")
        file = folder / f"{architecture}-{kind}-{seed}.gguf"
        if not file.exists():
            write_gguf(file, kind=kind, seed=seed, architecture=architecture)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            if name == "growing":
                name, options = "torch", {"is_batched": False} | options
            return Engine.load(str(file), engine=name, template="plain", **{"num_threads": 1} | options)

    return load
