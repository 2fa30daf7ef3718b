"""A small model with random weights in a GGUF file, which PyTorch and llama.cpp read alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

WIDTH, LAYERS, CONTEXT = 64, 2, 1024
HEADS, KEY_HEADS, INNER = 2, 1, 128
MERGES = ["a b", "Ġ a", "Ċ Ċ", "1 2"]
VOCABULARY = [
    "<|endoftext|>",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
]
MATRICES = {
    "token_embd": (len(VOCABULARY), WIDTH),
    "output": (len(VOCABULARY), WIDTH),
    **{
        f"blk.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH // HEADS * KEY_HEADS, WIDTH),
            "attn_v": (WIDTH // HEADS * KEY_HEADS, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }.items()
    },
}
"""Names -> [out, in]."""
NORMS = ("attn_norm", "ffn_norm")
"""Of each layer."""
GEMMA, WINDOW = "gemma2", 40
"""An architecture whose first layer sees so many tokens."""


def write_gguf(
    path: Path,
    *,
    seed: int = 0,
    kind: str = "Q8_0",
    architecture: str = "llama",
    split: str = "gpt-2",
    added: Mapping[str, NDArray[np.float32]] | None = None,
    original_context: int = 0,
    scaling: str = "longrope",
    context: int = CONTEXT,
    chat_template: str = "",
) -> Path:
    """A Llama with grouped heads and a byte-level tokenizer. kind: of its matrices, as the package gguf names it.
    added: to some of the matrices, before they are quantised."""
    from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quantize

    writer: Any = GGUFWriter(path, architecture)
    if original_context:
        writer.add_rope_scaling_type(RopeScalingType(scaling))
        writer.add_rope_scaling_orig_ctx_len(original_context)
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    if split:
        writer.add_tokenizer_pre(split)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, *[1] * (len(VOCABULARY) - 1)])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    if chat_template:
        writer.add_chat_template(chat_template)
    random, quantisation = np.random.default_rng(seed), GGMLQuantizationType[kind]
    for name, shape in MATRICES.items():
        if name == "output" and architecture == GEMMA:
            continue  # it is the embedding
        values = 0.2 * random.standard_normal(shape).astype(np.float32) + (added or {}).get(name, 0)
        writer.add_tensor(f"{name}.weight", quantize(values, quantisation), raw_dtype=quantisation)
    norms = NORMS
    if architecture == GEMMA:
        writer.add_sliding_window(WINDOW)
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
        norms = (*NORMS, "post_attention_norm", "post_ffw_norm")
    for name in ("output_norm", *(f"blk.{layer}.{norm}" for layer in range(LAYERS) for norm in norms)):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    return write_out(writer, path)


def write_lora(path: Path, update: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]) -> Path:
    """An adapter in a GGUF file, with alpha equal to its rank. update: of matrices, A [rank, in] and B [out, rank]."""
    from gguf import GGUFWriter

    writer: Any = GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(len(next(iter(update.values()))[0])))
    for name, (down, up) in update.items():
        writer.add_tensor(f"{name}.weight.lora_a", down)
        writer.add_tensor(f"{name}.weight.lora_b", up)
    return write_out(writer, path)


def write_out(writer: Any, path: Path) -> Path:
    """Let a GGUFWriter of `path` write what it was given."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
